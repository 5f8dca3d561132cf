// Package estimator learns from the log how many tokens a byte of prompt text is, for each model. What a gateway estimated stands in a
// reserve, with the bytes of text; what the model counted, in an exact true-up of the same attempt that may train. All arithmetic is in
// integers, so that every reader of a log comes to the same ratios.
package estimator

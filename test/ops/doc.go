// Package ops holds what operators are given in ops/ against the product: rules, dashboards and runbooks against what is exported,
// deployments against flags, paths and ports. What Prometheus itself must judge is tested in the module ops/prometheus.
package ops

"""Facts about the speed of a kernel, beside its findings: no fault follows from them."""

"""Random specs, and whether the rules say of each what the compiler and the simulator say.

What the rules accept has to render, compile and be what the plan says; a sample is simulated. Where registers
spill, the next plan is compiled; where none is left, the compiler has refused the spec, which is counted.
What the rules refuse has to fail somewhere once those that refuse it are skipped, or the rule is one whose
reason neither a compiler nor this simulator can see. Everything else is a finding, with the smallest spec
that still shows it.

A spec is drawn field by field, mostly from values that are legal somewhere, and then brought closer to what
is legal: a field that a rule blames is drawn anew or left out, until the spec plans. So specs crowd where
rules begin to refuse: the last one that was refused breaks little else. A seed makes one spec on every
machine.
"""

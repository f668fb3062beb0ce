"""What to ask for: how many nodes, how many parameter servers, which algorithm for each layer.

Closed forms and an integer programme after Zou et al., Large-Scale Deep Learning Training Guidelines
(arXiv:1709.06622). Everything here computes with numbers that somebody else has measured.
"""

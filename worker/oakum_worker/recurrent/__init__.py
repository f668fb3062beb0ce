"""LSTM and GRU layers whose step is one loop nest, compiled for this machine's processor (arXiv:1909.13654).

`layers` is what users import. `passes` holds the layers' forward and backward pass. `kernels` calls the
compiled `loops.cpp`, which `building` compiles at the first use, never at an import. `design_space` enumerates
how the loops can be unrolled, tiled and divided among threads (a *choice*), and predicts the time of each
choice; `choices` remembers which one was measured to be fastest. `spatial` is a model of the paper's
accelerator, which no machine here has. Nothing in this package knows of training steps, ranks or trainers.
"""

"""The engines: native, Kineto and hybrid, and which of them fits this machine."""

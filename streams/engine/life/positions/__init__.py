"""Where lanes stand: cuts, which topics positions belong to, what an operator accepts."""

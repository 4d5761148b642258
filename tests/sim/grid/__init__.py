"""A simulation of rings in rows and columns, driven by the machine of the product's ring
(decision 121)."""

"""From files to `ModelWeights`: find them, read their headers, check every name, shape and dtype, then load.

locate (which files) → index (what their headers say) → names_native | names_hf (the configuration, and what
each tensor is called) → plan (which bytes go where; no data is read yet) → load (stream reads them).
summary describes a plan for people.
"""

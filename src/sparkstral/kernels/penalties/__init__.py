"""What requests do to their logits before a token is chosen, from what the device remembers of them.

    change_logits(logits [R, V] float32, table [S, V + 2 B] int32, records [R] int32, repetition [R] float32,
                  presence [R] float64, frequency [R] float64, num_biases [R] int32) -> [R, V] float32
    note_tokens(table, records, token_ids [R] int64, status [R] int32): in place

A record is a row of the table, of one request. Word v < V is how often its answer holds token v, plus IN_PROMPT if the
prompt does; words V .. V + B - 1 are token ids and words V + B .. V + 2 B - 1 the bits of the biases (float32) that
they get: num_biases[r] of them are read, each id stands once. records[r] is row r's record, or -1: its logits stay.

In this order: a token that prompt or answer hold is divided by repetition where its logit is above 0, else multiplied;
presence + frequency * count, in float64 and rounded to float32, is taken off a token that the answer holds; biases are
added. Equal to sampling/processors to the bit. `note_tokens` counts a row's token unless its status says that there is
none; so a step can be launched before the host has seen the token of the one before.

CUDA graph: safe. `out` of change_logits may be memory that the sampling kernels write weights to: they read each
element before they write it.
"""

from sparkstral.kernels.penalties.reference import IN_PROMPT, change_logits, note_tokens

__all__ = ["IN_PROMPT", "change_logits", "note_tokens"]

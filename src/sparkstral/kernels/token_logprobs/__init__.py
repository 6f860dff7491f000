"""How likely the model itself finds tokens: of each row a token's log probability and the likeliest tokens.

    token_logprobs(logits [R, V] float32, token_ids [R] int64, num_top [R] int32) -> [R, 1 + 2 MAX_TOP] int32

Of a row with num_top[r] = k >= 0: word 0 is the log probability of token_ids[r], words 1 .. k those of the k likeliest
tokens in falling order (bits of float32), words MAX_TOP + 1 .. MAX_TOP + k these tokens' ids; among equal logits the
lowest id comes first. k is at most MAX_TOP, and at most V. Other words, and rows whose num_top is -1, mean nothing: one
copy brings a row to the host. Log probabilities are (logit - largest) - log(sum of exp(logit - largest)).

Tolerance of the Triton form: exp, log and the order of the sum, 1e-5; ids are equal. A row with a NaN gets one, and a
token id outside 0 .. V - 1 is not read. CUDA graph: safe.
"""

from sparkstral.kernels.token_logprobs.reference import MAX_TOP, token_logprobs

__all__ = ["MAX_TOP", "token_logprobs"]

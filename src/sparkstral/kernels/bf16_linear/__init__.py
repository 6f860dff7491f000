"""Products of few tokens with a dense weight: bound by the reading of the weight.

    bf16_linear(x [M, K], weight [N, K], out_dtype) -> [M, N]

M from 1 to 32 is what the Triton form is made for; with more rows PyTorch's own product (cuBLAS) is the fast form.
The Triton form leaves the sum over K in parts where that fills the device:

    triton_kernel.bf16_linear(x, weight, out_dtype, config=, pdl=) -> parts [S, M, N]

S is 1 (then of out_dtype) or the number of stretches that K was cut into (then float32); whoever reads the parts
adds them in their order, as the fused kernels around the products do (kernels/rms_norm, latent_write, mla_decode).
S, and the order in which an element's terms are added, depend on N, K and the configuration alone and not on M,
except that up to `config.max_fma_tokens` rows take a form of their own (`_rows_at_once`): the result is
deterministic, and a row's result is that of any batch on its side of that number.

x and weight are bfloat16 (any float dtype in the interpreter), row-major, contiguous. Products are exact, sums
float32. Tolerance of the fast form: that of a float32 sum in another order, then rounding to out_dtype.
CUDA graph: safe, nothing is read on the host.
"""

from sparkstral.kernels.bf16_linear.reference import bf16_linear

__all__ = ["bf16_linear"]

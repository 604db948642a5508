// Keeps every SM busy with single-precision FMAs for a given time.
//
// Each thread runs eight independent orbits of x -> x * x - 1.9, which stay within +-1.97 and never settle, so that the
// multipliers keep toggling. The time is read each 512 FMAs, which is a few microseconds. Nothing is written: the sum of
// eight orbits is never 100, but the compiler does not know that.
//
// Compiled to burn.ptx by scripts/make_ptx.py.

extern "C" __global__ void burn(unsigned long long for_ns, float *sink)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    float x[8];
#pragma unroll
    for (int k = 0; k < 8; ++k)
        x[k] = 0.1f * k + 1e-4f * threadIdx.x;
    do {
#pragma unroll 8
        for (int i = 0; i < 64; ++i) {
#pragma unroll
            for (int k = 0; k < 8; ++k)
                x[k] = fmaf(x[k], x[k], -1.9f);
        }
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < for_ns);
    float sum = x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7];
    if (sum == 100.0f)
        *sink = sum;
}

// weigh: what the losses of a step come to, and what its gradient is divided by.
// settle: what the update of a step multiplies by, from the norm of its gradient and whether all of it is finite.
//
// What the host hears of a step (`found`, doubles): 0 loss, 1 weight, 2 sum of squares; then words: 6 and 7 rows counted,
// 8 and 9 rows right (low, high), 10 the first micro-batch whose loss is not finite and one more, 11 what became of the
// update, 12 whether the statistics are finite (both kernels stand around the one that says so), 13 the opposite of it.
// What kernels read (`numbers`, floats): 0 the factor of gradients, 1 that of sums of statistics, 2 one, 3 the scale of the
// loss, 4 what the squares are of; 5, a word: whether an earlier update has halted. Of an update that is not made 0 to 2 are
// not numbers, and kernels that are given them change nothing.
//
// Order: losses and weights are added along the reduction tree. Plain sums, quotients and a root, which IEEE 754 rounds
// exactly: the host's bits. Launch: one block of 32 threads, of which one works. Does not know gradients.

enum { MADE = 0, SKIPPED = 1, HALTED = 2, SETTLE_DEPTH = 32 };

__device__ inline double as_double(u64 bits) { return __longlong_as_double((long long)bits); }
__device__ inline bool is_number(double x) { return x - x == 0.0; }

// Each loss is three doubles: its sum, its weight, and two words: rows counted, rows right. They lie in `places` places, one
// behind the other and from the last place to the first; with none, the weight is `known`.
extern "C" __global__ void __launch_bounds__(32) weigh(
    const double* losses, double* found, float* numbers, u32 places, u32 first, u32 count, u64 known) {
    if (threadIdx.x != 0) return;
    double loss[SETTLE_DEPTH], weight[SETTLE_DEPTH];
    u64 counted = 0, right = 0;
    u32 depth = 0, broken = 0;
    for (u32 leaf = 0; leaf < count; leaf++) {
        const double* one = losses + 3 * (u64)((first + leaf) % places);
        const u32* rows = (const u32*)(one + 2);
        loss[depth] = one[0];
        weight[depth] = one[1];
        depth++;
        counted += rows[0];
        right += rows[1];
        if (broken == 0 && !is_number(one[0])) broken = leaf + 1;
        // As many as the number of the next leaf is even how often: a binary counter.
        for (u32 next = leaf + 1; next % 2 == 0; next /= 2) {
            depth--;
            loss[depth - 1] = loss[depth - 1] + loss[depth];
            weight[depth - 1] = weight[depth - 1] + weight[depth];
        }
    }
    for (; depth > 1; depth--) {
        loss[depth - 2] = loss[depth - 2] + loss[depth - 1];
        weight[depth - 2] = weight[depth - 2] + weight[depth - 1];
    }
    double all = count > 0 ? weight[0] : as_double(known);
    found[0] = count > 0 ? loss[0] : 0.0;
    found[1] = all;
    u32* words = (u32*)found;
    words[6] = (u32)counted;
    words[7] = (u32)(counted >> 32);
    words[8] = (u32)right;
    words[9] = (u32)(right >> 32);
    words[10] = broken;
    words[12] = 1;
    double divisor = all * (double)numbers[3];
    numbers[4] = divisor == 0.0 ? 0.0f : (float)(1.0 / divisor);
}

// `scale` is null where the loss is not scaled, or the scale and how many steps in a row were finite; it doubles after
// `interval` of them.
extern "C" __global__ void __launch_bounds__(32) settle(
    double* found, float* numbers, float* scale, u32 interval, u64 clip_norm, float sums, float most) {
    if (threadIdx.x != 0) return;
    u32* words = (u32*)found;
    u32* halted = (u32*)numbers + 5;
    double norm = sqrt(found[2]);
    bool fine = is_number(norm) && words[12] != 0;
    words[13] = words[12] == 0;
    u32 verdict = fine ? MADE : scale && scale[0] > 1.0f ? SKIPPED : HALTED;
    if (words[10] != 0 || *halted != 0) verdict = HALTED;
    double divisor = found[1] * (double)numbers[3];
    double clip = as_double(clip_norm) / (norm + 1e-6);
    clip = clip < 1.0 ? clip : 1.0;
    bool made = verdict == MADE;
    numbers[0] = !made ? not_a_number() : divisor == 0.0 ? 0.0f : (float)(clip / divisor);
    numbers[1] = made ? sums : not_a_number();
    numbers[2] = made ? 1.0f : not_a_number();
    if (scale && verdict == SKIPPED) {
        scale[0] = scale[0] / 2.0f;
        scale[1] = 0.0f;
    }
    if (scale && made) {
        bool grows = scale[1] + 1.0f >= (float)interval;
        if (grows && scale[0] < most) scale[0] = scale[0] * 2.0f;
        scale[1] = grows ? 0.0f : scale[1] + 1.0f;
    }
    if (scale) numbers[3] = scale[0];
    if (verdict == HALTED) *halted = 1;
    words[11] = verdict;
}

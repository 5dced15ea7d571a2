//! Each kernel is made wrong in one place, mostly by one sign, and the check of its operation has to notice.
//!
//! To see what noticed: `cargo test -p dtrain-cuda --test mutations -- --nocapture`. Needs a C++ compiler; without one these
//! tests say so and pass. `DTRAIN_MUTATIONS=2/3` tries the second third of each file's changes, for those who come back often.

mod share;
mod stand_in;

use dtrain_cuda::kernels::*;
use stand_in::build::{Built, compiler};
use stand_in::*;
use std::collections::BTreeSet;

/// A kernel, what is changed in its file, and the check that has to fail.
type Change = (&'static Kernel, &'static str, &'static str, Check);

/// One change of every kernel, and some of what kernels share. Of kernels that are there for several kinds of numbers, of those of
/// the first.
static CHANGES: &[Change] = &[
    (&FILL, "y[i] = value", "y[i] = -value", elementwise::fill),
    (&COPY, "return v;", "return -v;", elementwise::copy),
    (&ADD, "a + b;", "a - b;", elementwise::add),
    (&ADD, ") y[i] = f(a[i], b[i])", ") y[i] = f(a[i], a[i])", elementwise::add),
    (&ADD, "b + 8 * i", "a + 8 * i", elementwise::add),
    (&ADD_TO, "y + x;", "y - x;", elementwise::add_to),
    (&RELU, "activate(v, ", "activate(-v, ", elementwise::relu),
    (&RELU_GRADIENT, "y > 0.0f", "y < 0.0f", elementwise::relu_gradient),
    (&GELU, "x * normal(x, density)", "-x * normal(x, density)", elementwise::gelu),
    (&GELU, "p = -0.14434367f", "p = 0.14434367f", elementwise::gelu),
    (&GELU_GRADIENT, "fmaf(x, density", "fmaf(-x, density", elementwise::gelu_gradient),
    (&BIAS_ACTIVATION, "sums.v[i] + bias", "sums.v[i] - bias", elementwise::bias_activation),
    (&BIAS_ACTIVATION, "++channel == channels", "++channel != channels", elementwise::bias_activation),
    (&BIAS_ACTIVATION, "place.inside >= 8", "place.inside >= 5", elementwise::bias_activation),
    (&BIAS_ACTIVATION, "at / area % channels", "at / area / channels", elementwise::bias_activation),
    (&FINISH, "sum + parts[part * len + i]", "sum - parts[part * len + i]", product::linear),
    (&FINISH, "sum + bias[column]", "sum - bias[column]", product::linear),
    (
        &TURN,
        "place = tile + row * pitch + column;\n#pragma",
        "place = tile + row * pitch + (column ^ 1);\n#pragma",
        turning::turn,
    ),
    (&TURN, "turned + bias[", "turned - bias[", turning::turn_on_the_way),
    (&TURN, "before[i] + sum", "before[i] - sum", turning::turn_on_the_way),
    (&TURN, "passed[i] > 0.0f", "passed[i] < 0.0f", turning::turn_on_the_way),
    (&DROPOUT, "key0 += 0x9E3779B9u", "key0 -= 0x9E3779B9u", elementwise::dropout),
    (&TO_BF16, "(Stored*)y, len", "(Stored*)y, len / 2", elementwise::halves::<Bf16>),
    (&FROM_BF16, "(u32)bits << 16", "(u32)bits << 15", elementwise::halves::<Bf16>),
    (
        &TO_F16,
        "u32 both(float first, float second)",
        "u32 both(float second, float first)",
        elementwise::halves::<F16>,
    ),
    (&FROM_F16, "word >> 16));", "word >> 15));", elementwise::halves::<F16>),
    (&ADAMW, "decay - step_size", "decay + step_size", update::adamw),
    (&LION, "way = beta1 * m[i] + rest1 * d", "way = beta1 * m[i] - rest1 * d", update::lion),
    (&LION, "way > 0.0f ? lr", "way >= 0.0f ? lr", update::lion),
    (&SGD, "p[i] - lr * (g[i]", "p[i] + lr * (g[i]", update::sgd),
    (&SGD_MOMENTUM, "p[i] - lr * (nesterov", "p[i] + lr * (nesterov", update::sgd),
    (&BLEND, "(1.0f - momentum)", "(1.0f + momentum)", update::blend),
    (&FINITE_PARTS, "fine && is_finite(x[i])", "fine && !is_finite(x[i])", sums::all_finite),
    (&FINITE_ALL, "parts[i] != 0", "parts[i] == 0", sums::all_finite),
    (&SQUARE_PARTS, "sum + v * v", "sum - v * v", sums::sum_of_squares),
    (&SUM_IN_ORDER, "total + some[i]", "total - some[i]", sums::sum_of_squares),
    (&WEIGH, "weight[depth - 1] + weight[depth]", "weight[depth - 1] - weight[depth]", settle::weigh),
    (&WEIGH, "(first + leaf) % places", "(first + leaf + 1) % places", settle::weigh),
    (&WEIGH, "broken == 0 && !is_number", "broken != 0 && !is_number", settle::weigh),
    (&SETTLE, "clip < 1.0 ? clip", "clip > 1.0 ? clip", settle::settle),
    (&SETTLE, "scale[0] > 1.0f ? SKIPPED", "scale[0] >= 1.0f ? SKIPPED", settle::settle),
    (&SETTLE, "|| *halted != 0", "&& *halted != 0", settle::settle),
    (
        &ADAMW,
        "epsilon, const float* found) {\n    scale = number(scale, found);\n    if (is_none(scale)) return;",
        "epsilon, const float* found) {\n    scale = number(scale, found);",
        settle::found_numbers,
    ),
    (&BLEND, "if (is_none(scale)) return;", "", settle::found_numbers),
    (&SQUARE_PARTS, "scale = number(scale, found)", "scale = number(scale, 0)", settle::found_numbers),
    (&SUM_TREE, "below[depth - 1] + top", "below[depth - 1] - top", tree::sum_tree),
    (&SUM_TREE, "top + address(leaves", "top - address(leaves", tree::sum_tree),
    (&COLUMN_PARTS, "v[i] + other.v[i]", "v[i] - other.v[i]", sums::column_sums),
    (&PLANE_PARTS, "sum + x[walk", "sum - x[walk", conv::conv2d_weight_gradient),
    (&SUM_PARTS, "sum + parts[part", "sum - parts[part", sums::column_sums),
    (&SUM_PARTS, "sum += room[other]", "sum -= room[other]", sums::column_sums_of_many_rows),
    (&LAYER_NORM, "(some.v[i] - mean) * factor", "(some.v[i] + mean) * factor", norms::layer_norm),
    (&LAYER_NORM, "join(v, __shfl", "join(-v, __shfl", norms::layer_norm),
    (&LAYER_NORM_GRADIENT, "by.v[i] - means.along", "by.v[i] + means.along", norms::layer_norm_gradient),
    (
        &LAYER_NORM_GRADIENT,
        "(x.v[i] - mean) * factor",
        "(x.v[i] + mean) * factor",
        norms::layer_norm_gradient,
    ),
    (&GRADIENT_PARTS, "x.v[i] > 0.0f", "x.v[i] < 0.0f", stored::gradient_and_sums::<Bf16>),
    (&GRADIENT_PARTS, "v[i] + other.v[i]", "v[i] - other.v[i]", stored::gradient_and_sums::<Bf16>),
    (&BATCH_NORM_PARTS, "next()] - mean", "next()] + mean", norms::batch_norm),
    (&BATCH_NORM_PARTS, "at += jump", "at -= jump", norms::batch_norm),
    (&BATCH_NORM_STATISTICS, "(count - 1.0)", "(count + 1.0)", norms::batch_norm),
    (&BATCH_NORM_STATISTICS, "mean += away", "mean -= away", norms::batch_norm),
    (
        &BATCH_NORM,
        "{saved[2 * c], saved[2 * c + 1] * gain[c]",
        "{-saved[2 * c], saved[2 * c + 1] * gain[c]",
        norms::batch_norm,
    ),
    (&BATCH_NORM_BY, "{running[c]", "{-running[c]", norms::batch_norm_by),
    (&BATCH_NORM_GRADIENT_PARTS, "across += (double)dy", "across -= (double)dy", norms::batch_norm_gradient),
    (&BATCH_NORM_GRADIENT_SUMS, "= (float)along", "= -(float)along", norms::batch_norm_gradient),
    (&BATCH_NORM_GRADIENT, "d.v[i] - own.along", "d.v[i] + own.along", norms::batch_norm_gradient),
    (&CROSS_ENTROPY, "(lse - (double)goal)", "(lse + (double)goal)", losses::cross_entropy),
    (&CROSS_ENTROPY, "some.v[i] - hit", "some.v[i] + hit", losses::cross_entropy),
    (&CROSS_ENTROPY, "main * weight * scale", "main * weight / scale", losses::cross_entropy),
    (&CROSS_ENTROPY, "some.v[i] - spread * w", "some.v[i] + spread * w", losses::cross_entropy),
    (&CROSS_ENTROPY, "(mantissa - 1.0)", "(mantissa + 1.0)", losses::cross_entropy),
    (&SQUARED_ERROR, "i] - targets[", "i] + targets[", losses::squared_error),
    (&SQUARED_ERROR, "(float)width * scale", "(float)width / scale", losses::squared_error),
    (&LOSS_SUMS, "loss += values", "loss -= values", losses::squared_error),
    (&ARG_MAX, "return v > value ||", "return v < value ||", losses::arg_max),
    (&ARG_MAX, "own.value == top ? own.place", "own.value < top ? own.place", losses::arg_max),
    (&CROSS_ENTROPY, "value == top ? own.total", "value < top ? own.total", losses::cross_entropy),
    (&CROSS_ENTROPY, "is_finite(top) ?", "!is_finite(top) ?", losses::cross_entropy),
    (
        &CROSS_ENTROPY_BF16,
        "power_of_two(x * 1.44269504088896340736f)",
        "power_of_two(x * 1.442f)",
        stored::losses::<Bf16>,
    ),
    (&GELU_F16, "return quick_inverse(x)", "return quick_inverse(x) * 1.0001f", stored::point_wise::<F16>),
    (&CROSS_ENTROPY, "x.v[i] - center", "center - x.v[i]", losses::cross_entropy),
    (&CROSS_ENTROPY, "x <= 0.0f ? low : x", "low", losses::broken_rows),
    (
        &ATTENTION_32,
        "x <= 88.7f ? low : x + infinity()",
        "x > 88.7f ? infinity() : low",
        attention::broken_key,
    ),
    (&ARG_MAX, "value && place == width", "value && place > width", losses::arg_max),
    (&MAX_POOL, "wins = v > best", "wins = v < best", pooling::max_pool),
    (
        &MAX_POOL,
        "top + r - shape.pad_height, column",
        "top + r + shape.pad_height, column",
        pooling::max_pool,
    ),
    (&MAX_POOL, "row < shape.height && column", "row <= shape.height && column", pooling::max_pool),
    (&MAX_POOL_GRADIENT, "out + 1 == outs ? size", "out == outs ? size", pooling::max_pool),
    (&MAX_POOL_GRADIENT, "out == 0 ? 0", "out == 1 ? 0", pooling::max_pool),
    (&MAX_POOL_GRADIENT, "at == place ? d", "at != place ? d", pooling::max_pool),
    (&MAX_POOL_GRADIENT, "= 0.0f + dy[i]", "= dy[i]", pooling::max_pool),
    (&MAX_POOL_GRADIENT, "sum + dy[out]", "sum - dy[out]", pooling::max_pool),
    (&AVG_POOL, "sum + plane[corner", "sum - plane[corner", pooling::avg_pool),
    (&AVG_POOL_GRADIENT, "sum + dy[first", "sum - dy[first", pooling::avg_pool),
    (&EMBEDDING, "entry + places[", "entry - places[", embedding::embedding),
    (&GELU_TANH, "TWICE * x * fmaf(square", "TWICE * x * fmaf(-square", elementwise::gelu_tanh),
    (&GELU_TANH, "inverse(1.0f + e)", "inverse(1.0f - e)", elementwise::gelu_tanh),
    (&GELU_TANH_GRADIENT, "s * rest", "s * s", elementwise::gelu_tanh_gradient),
    (&EMBEDDING_GRADIENT, "sum = dtable", "sum = 0.0f * dtable", embedding::embedding_gradient),
    (&EMBEDDING_ORDER, "start + i < row", "start + i > row", embedding::embedding_gradient),
    (
        &EMBEDDING_ORDER,
        "if (start < own) {\n#pragma unroll 32\n            for (u32 i = 0; i < 256; i++) before += some.ids[i] <= id;\n        } else if (start > own) {",
        "if (start > own) {\n#pragma unroll 32\n            for (u32 i = 0; i < 256; i++) before += some.ids[i] <= id;\n        } else if (start < own) {",
        embedding::order_of_many,
    ),
    (&EMBEDDING_GRADIENT, "sum + dy[(u64)order", "sum - dy[(u64)order", embedding::embedding_gradient),
    (&PLACES_GRADIENT, "sum + dy[row", "sum - dy[row", embedding::embedding_gradient),
    (&PRODUCT, "sum + with.bias", "sum - with.bias", product::linear),
    (&PRODUCT, "split * K_BLOCK", "0", product::linear),
    (&PRODUCT, "(u64)m * c_row", "(u64)m", product::linear),
    (&PRODUCT, "with.there + sum", "with.there - sum", product::product),
    (&LINEAR_GELU, "its_bias + sum", "its_bias - sum", product::linear_gelu),
    (&LINEAR_GELU, "by_tanh ? tanh_gelu", "!by_tanh ? tanh_gelu", product::linear_gelu),
    (&PRODUCT, "fmaf(a[r], b[c]", "fmaf(-a[r], b[c]", product::product),
    (&CONV2D, "sum + its_bias", "sum - its_bias", conv::conv2d),
    (&CONV2D, "step.number + place.go", "step.number + 0 * place.go", conv::conv2d),
    (&CONV2D, "outer.go(step.outer, box.outer, over)", "outer.go(step.outer, box.outer, 0)", conv::conv2d),
    (&CONV2D, "!b.along_k || i == 3", "b.along_k || i == 3", conv::conv2d),
    (&CONV2D, "!a.along_k || i == 3", "!a.along_k", conv::conv2d),
    (&CONV2D_INPUT_GRADIENT, "stride.box() == 1", "stride.box() != 1", conv::conv2d_input_gradient),
    (&CONV2D_INPUT_GRADIENT, "(shape.kernel - 1)", "(shape.kernel - 2)", conv::conv2d_input_gradient),
    (
        &CONV2D_INPUT_GRADIENT,
        "element.place + shape.padding",
        "element.place - shape.padding",
        conv::conv2d_input_gradient,
    ),
    (&CONV2D_INPUT_GRADIENT, "!x || own > 0.0f", "!x || own < 0.0f", conv::conv2d_input_gradient),
    (
        &CONV2D_WEIGHT_GRADIENT,
        "place.place - shape.padding",
        "place.place + shape.padding",
        conv::conv2d_weight_gradient,
    ),
    (
        &CONV3D,
        "outer.place(index / last), index % last",
        "outer.place(index % last), index / last",
        conv::conv3d,
    ),
    (
        &CONV3D_INPUT_GRADIENT,
        "shape.window() - 1 - term.place.last",
        "term.place.last",
        conv::conv3d_input_gradient,
    ),
    (
        &CONV3D_INPUT_GRADIENT,
        "outer.rest(steps.outer) | last",
        "outer.rest(steps.outer) & last",
        conv::conv3d_input_gradient,
    ),
    (
        &CONV3D_WEIGHT_GRADIENT,
        "line.first + term.place * shape.stride",
        "line.first - term.place * shape.stride",
        conv::conv3d_weight_gradient,
    ),
    (&ATTENTION_32, "(p[j] - best)", "(p[j] + best)", attention::forward_32),
    (&ATTENTION_64, "(p[j] - best)", "(p[j] + best)", attention::forward_64),
    (&ATTENTION_128, "(p[j] - best)", "(p[j] + best)", attention::forward_128),
    (&ATTENTION_256, "(p[j] - best)", "(p[j] + best)", attention::forward_256),
    (&ATTENTION_QUERIES_32, "(dp - delta)", "(dp + delta)", attention::gradient_32),
    (&ATTENTION_QUERIES_64, "(dp - delta)", "(dp + delta)", attention::gradient_64),
    (&ATTENTION_QUERIES_128, "(dp - delta)", "(dp + delta)", attention::gradient_128),
    (&ATTENTION_QUERIES_256, "(dp - delta)", "(dp + delta)", attention::gradient_256),
    (&ATTENTION_KEYS_32, "(dp - deltas[", "(dp + deltas[", attention::gradient_32),
    (&ATTENTION_KEYS_64, "(dp - deltas[", "(dp + deltas[", attention::gradient_64),
    (&ATTENTION_KEYS_128, "(dp - deltas[", "(dp + deltas[", attention::gradient_128),
    (&ATTENTION_KEYS_256, "(dp - deltas[", "(dp + deltas[", attention::gradient_256),
    (&ATTENTION_BF16_32, "low = -best", "low = best", attention_half::forward_32::<Bf16>),
    (&ATTENTION_BF16_32, "(top - best)", "(top + best)", attention_half::forward_32::<Bf16>),
    (&ATTENTION_BF16_64, "key > query ||", "key >= query ||", attention_half::forward_64::<Bf16>),
    (
        &ATTENTION_BF16_128,
        "lane % 8 + lane / 16 * 8) * pitch + k + lane / 8 % 2 * 8",
        "lane % 16) * pitch + k + lane / 16 * 8",
        attention_half::forward_128::<Bf16>,
    ),
    (
        &ATTENTION_BF16_QUERIES_32,
        "(each - delta[r])",
        "(each + delta[r])",
        attention_half::gradient_32::<Bf16>,
    ),
    (&ATTENTION_BF16_QUERIES_64, "scale2, -log2[r]", "scale2, log2[r]", attention_half::gradient_64::<Bf16>),
    (
        &ATTENTION_BF16_QUERIES_128,
        "key <= place.row + 8 * r",
        "key <= place.row",
        attention_half::gradient_128::<Bf16>,
    ),
    (&ATTENTION_BF16_KEYS_32, "(change - delta)", "(change + delta)", attention_half::gradient_32::<Bf16>),
    (
        &ATTENTION_BF16_KEYS_64,
        "query >= place.row + 8",
        "query > place.row + 8",
        attention_half::gradient_64::<Bf16>,
    ),
    (&ATTENTION_BF16_KEYS_128, "scale2, -log2)", "scale2, log2)", attention_half::gradient_128::<Bf16>),
    (&CONV2D_BF16, "sum + its_bias", "sum - its_bias", conv_half::conv2d::<Bf16>),
    (&CONV2D_BF16, "(x.along_k, 0).k + 1)", "(x.along_k, 0).k)", conv_half::conv2d::<Bf16>),
    (&CONV2D_BF16, "!x.along_k || i == 7", "x.along_k || i == 7", conv_half::conv2d::<Bf16>),
    (&CONV2D_BF16, "k + 1 < depth", "k < depth", conv_half::conv2d::<Bf16>),
    (&CONV2D_BF16, "right + j * 16, k", "right + j * 8, k", conv_half::conv2d::<Bf16>),
    (
        &CONV2D_BF16_INPUT_GRADIENT,
        "element.place + shape.padding",
        "element.place - shape.padding",
        conv_half::conv2d_input_gradient::<Bf16>,
    ),
    (
        &CONV2D_BF16_INPUT_GRADIENT,
        "put(down, places[i / 4 % 4][i % 2]",
        "put(down, places[i / 4 % 4][1 - i % 2]",
        conv_half::conv2d_input_gradient::<Bf16>,
    ),
    (
        &CONV2D_BF16_INPUT_GRADIENT,
        "!x || own > 0.0f",
        "x && own > 0.0f",
        conv_half::conv2d_input_gradient::<Bf16>,
    ),
    (
        &CONV2D_BF16_WEIGHT_GRADIENT,
        "split * each)",
        "split * DEPTH)",
        conv_half::conv2d_weight_gradient::<Bf16>,
    ),
    (
        &CONV2D_BF16_WEIGHT_GRADIENT,
        "threadIdx.x / 16 + 8",
        "threadIdx.x / 16 + 1",
        conv_half::conv2d_weight_gradient::<Bf16>,
    ),
    (
        &CONV3D_BF16,
        "cell.place * shape.stride - shape",
        "cell.place * shape.stride + shape",
        conv_half::conv3d::<Bf16>,
    ),
    (
        &CONV3D_BF16_INPUT_GRADIENT,
        "place = place / shape.stride",
        "place = place * shape.stride",
        conv_half::conv3d_input_gradient::<Bf16>,
    ),
    (
        &CONV3D_BF16_WEIGHT_GRADIENT,
        "outer.index(place.outer) * last",
        "outer.index(place.outer) + last",
        conv_half::conv3d_weight_gradient::<Bf16>,
    ),
    (&PRODUCT_BF16_NT_64, "sum + with.bias", "sum - with.bias", product_half::linear::<Bf16>),
    (
        &PRODUCT_BF16_NT_64,
        "sum + from_half(with.plus)",
        "sum - from_half(with.plus)",
        product_half::linear_plus::<Bf16>,
    ),
    (&PRODUCT_BF16_NT_64, "columns - column - right", "columns - column", product_half::nt::<Bf16>),
    (&LINEAR_BF16_GELU_64, "its_bias + sum", "its_bias - sum", product_half::linear_gelu::<Bf16>),
    (
        &LINEAR_BF16_GELU_128,
        "rounded = (u16)as_halves(sum, 0.0f)",
        "rounded = (u16)as_halves(-sum, 0.0f)",
        product_half::large_linear_gelu::<Bf16>,
    ),
    (&PRODUCT_BF16_NN_64, "with.there + sum", "with.there - sum", product_half::nn::<Bf16>),
    (
        &PRODUCT_BF16_TN_64,
        "room + (k + lane % 8 + lane / 16 * 8) * pitch",
        "room + (k + lane % 16) * pitch",
        product_half::tn::<Bf16>,
    ),
    (&PRODUCT_BF16_TN_64, "(u64)shape.m * shape.c_pitch", "(u64)shape.m", product_half::ranges::<Bf16>),
    (&PRODUCT_BF16_NT_64, "least(shape.k, split * each)", "0", product_half::linear::<Bf16>),
    (
        &PRODUCT_BF16_NT_128,
        "stage * EACH, *rights",
        "(stage ^ 1) * EACH, *rights",
        product_half::large_nt::<Bf16>,
    ),
    (
        &PRODUCT_BF16_NN_128,
        "warp / 2 * SIDE, right = warp % 2",
        "warp % 2 * SIDE, right = warp % 2",
        product_half::large_nn::<Bf16>,
    ),
    (&PRODUCT_BF16_TN_128, "j % 4 / 2 * 8) * SIDE", "j % 4 / 2 * 4) * SIDE", product_half::large_tn::<Bf16>),
    // Kernels over halves are of the same texts as those of f32: one change of each file shows that their checks look.
    (&COPY_BF16, "return v;", "return -v;", stored::point_wise::<Bf16>),
    (&ADD_BF16, "a + b;", "a - b;", stored::point_wise::<Bf16>),
    (&RELU_GRADIENT_BF16, "y > 0.0f", "y < 0.0f", stored::point_wise::<Bf16>),
    (&FINISH_BF16, "sum + plus[at]", "sum - plus[at]", product_half::linear_plus::<Bf16>),
    (&TURN_BF16, "activate(sum, activation)", "activate(-sum, activation)", stored::point_wise::<Bf16>),
    (&BIAS_ACTIVATION_BF16, "sums.v[i] + bias", "sums.v[i] - bias", stored::point_wise::<Bf16>),
    (&GELU_TANH_GRADIENT_BF16, "s * rest", "s * s", stored::point_wise::<Bf16>),
    (&DROPOUT_BF16, "key0 += 0x9E3779B9u", "key0 -= 0x9E3779B9u", stored::point_wise::<Bf16>),
    (&ADAMW_BF16, "decay - step_size", "decay + step_size", stored::updates::<Bf16>),
    (&BLEND_BF16, "rounded[i] = next", "rounded[i] = -next", stored::updates::<Bf16>),
    (&COLUMN_PARTS_BF16, "v[i] + other.v[i]", "v[i] - other.v[i]", stored::sums::<Bf16>),
    (
        &GRADIENT_PARTS_BF16,
        "d.v[i] * slope_of_gelu",
        "d.v[i] / slope_of_gelu",
        stored::gradient_and_sums::<Bf16>,
    ),
    (&LAYER_NORM_GRADIENT_BF16, "plus.v[i] + d.v[i]", "plus.v[i] - d.v[i]", stored::layer_norm::<Bf16>),
    (
        &BATCH_NORM_BF16,
        "{saved[2 * c], saved[2 * c + 1] * gain[c]",
        "{-saved[2 * c], saved[2 * c + 1] * gain[c]",
        stored::batch_norm::<Bf16>,
    ),
    (&CROSS_ENTROPY_BF16, "(lse - (double)goal)", "(lse + (double)goal)", stored::losses::<Bf16>),
    (&ARG_MAX_BF16, "x[row * pitch + i]", "x[row * width + i]", stored::rows_apart::<Bf16>),
    (&MAX_POOL_BF16, "wins = v > best", "wins = v < best", stored::pooling::<Bf16>),
    (&EMBEDDING_BF16, "entry + places[", "entry - places[", stored::embedding::<Bf16>),
    // Kernels of f16 are of the same texts: one change shows that their checks look.
    (&ATTENTION_F16_32, "(top - best)", "(top + best)", attention_half::forward_32::<F16>),
    (&CONV2D_F16, "sum + its_bias", "sum - its_bias", conv_half::conv2d::<F16>),
    (&PRODUCT_F16_NT_64, "sum + with.bias", "sum - with.bias", product_half::linear::<F16>),
    (&LINEAR_F16_GELU_64, "by_tanh ? tanh_gelu", "!by_tanh ? tanh_gelu", product_half::linear_gelu::<F16>),
    // What a sweep over all signs and comparisons found that no check noticed, before there were more checks.
    (&DROPOUT, "8 < bar", "8 <= bar", elementwise::dropout),
    (&SUM_IN_ORDER, "start += 256", "start += 512", sums::sum_of_many_squares),
    (&COLUMN_PARTS, "(run + 1) * 256", "(run - 1) * 256", sums::column_sums),
    (&LAYER_NORM, "away = some.v[i] - mean", "away = some.v[i] + mean", norms::layer_norm),
    (&LAYER_NORM_GRADIENT, "(blockIdx.x + 1) * 64", "(blockIdx.x - 1) * 64", norms::layer_norm_gradient),
    (&CROSS_ENTROPY, "target >= width", "target > width", losses::broken_rows),
    (&LOSS_SUMS, "counts[row] >> 1", "counts[row]", losses::cross_entropy),
    (&MAX_POOL_GRADIENT, "at / stride + 1", "at / stride - 1", pooling::max_pool),
    (&CONV2D_WEIGHT_GRADIENT, "from + each", "from - each", conv::conv2d_weight_gradient),
    (&ATTENTION_32, "j <= place.at && p[j]", "j <= place.at || p[j]", attention::forward_32),
];

/// What shows once a thread has more than one turn of a loop.
static TURNS: &[Change] = &[
    (&COPY, "next_element()) {\n        Eight some;", "eights) {\n        Eight some;", elementwise::copy),
    (
        &BATCH_NORM_BY,
        "channel >= channels) channel -= channels",
        "channel >= channels) channel = 0",
        norms::batch_norm_by,
    ),
    (&BATCH_NORM_BY, "inside -= area;\n            channel++", "inside -= area", norms::batch_norm_by),
    (&AVG_POOL, "column -= width;\n            row++", "column -= width", pooling::avg_pool),
    (&MAX_POOL, "row -= height;\n            plane++", "row -= height", pooling::max_pool),
];

/// What the stand-in itself has to notice, and the words that it says.
static FAULTS: &[(Change, &str)] = &[
    // A barrier is missing: shared memory is read before it is written.
    ((&COLUMN_PARTS, "    __syncthreads();\n    u32 column", "    u32 column", sums::column_sums), "NaN"),
    // The second barrier of a loop is missing: what some still read is overwritten.
    (
        (&PRODUCT, "        __syncthreads();\n        u32 done", "        u32 done", product::product),
        "Set }: c [",
    ),
    // Some threads never come to a barrier.
    (
        (
            &COLUMN_PARTS,
            "    room.put(sums)",
            "    if (threadIdx.x / 32 == 3) return;\n    room.put(sums)",
            sums::column_sums,
        ),
        "waits at barrier",
    ),
    // Some lanes never come to a shuffle.
    (
        (
            &LAYER_NORM,
            "    if (row >= rows) return;",
            "    if (row >= rows || threadIdx.x % 32 == 5) return;",
            norms::layer_norm,
        ),
        "waits at shuffle",
    ),
    // What is copied behind a thread's back is read before it is waited for.
    (
        (
            &ATTENTION_BF16_32,
            "end_of_copies();\n    copies_are_done<0>();",
            "end_of_copies();",
            attention_half::forward_32::<Bf16>,
        ),
        "is off by None",
    ),
    // What others copied is read before they were at a barrier.
    (
        (
            &ATTENTION_BF16_32,
            "copies_are_done<0>();\n    __syncthreads();",
            "copies_are_done<0>();",
            attention_half::forward_32::<Bf16>,
        ),
        "is off by None",
    ),
    // The rows of a matrix lie askew.
    (
        (
            &ATTENTION_BF16_32,
            "pitch + k + lane / 16 * 8",
            "pitch + k + lane / 16 * 4",
            attention_half::forward_32::<Bf16>,
        ),
        "not aligned to 16 bytes",
    ),
    // One element too far.
    (
        (
            &COPY,
            "i < len; i += next_element()) y[i] = f(x[i])",
            "i < len + 1; i += next_element()) y[i] = f(x[i])",
            elementwise::copy,
        ),
        "something was written to",
    ),
    // One element too few: what was never written is NaN.
    (
        (
            &ADD,
            "i < len; i += next_element()) y[i] = f(a[i]",
            "i + 1 < len; i += next_element()) y[i] = f(a[i]",
            elementwise::add,
        ),
        "NaN",
    ),
    // An operand is written.
    (
        (
            &SGD,
            "float next = p[i] - lr * (g[i]",
            "((float*)g)[i] = 0.0f; float next = p[i] - lr * (g[i]",
            update::sgd,
        ),
        "only to be read",
    ),
];

fn mutation(&(kernel, from, to, _): &Change) -> Mutation {
    Mutation { kernel, from, to }
}

/// What the check says of mutant `index` of `built`.
fn said(change: &Change, built: &Built, index: usize) -> Vec<String> {
    let q = StandIn::with(&mutation(change), built, index);
    (change.3)(&q, Extent::Small);
    q.end().0
}

/// Every change of one file is noticed, or of the share that is asked for.
fn noticed(name: &str) {
    if compiler().is_none() {
        return;
    }
    for (i, file) in FILES.iter().filter(|file| file.name == name).enumerate() {
        let of_file = |change: &&Change| std::ptr::eq(change.0.file, *file);
        let changes: Vec<&Change> = CHANGES.iter().filter(of_file).collect();
        // Of three kinds of numbers the last is of the same text as the second.
        assert!(!changes.is_empty() || i == 2, "no change of a kernel of {name}");
        for kernel in file.kernels().filter(|_| i == 0) {
            assert!(
                changes.iter().any(|change| change.0.name == kernel.name),
                "no change of {}",
                kernel.name
            );
        }
        let (which, of) = share::asked("DTRAIN_MUTATIONS");
        let changes: Vec<&Change> = changes.into_iter().skip(which - 1).step_by(of).collect();
        if !changes.is_empty() {
            all_are_noticed(file, &changes);
        }
    }
}

fn all_are_noticed(file: &'static File, changes: &[&Change]) {
    let built = Built::new(file, &changes.iter().map(|change| mutation(change)).collect::<Vec<_>>());
    for (index, change) in changes.iter().enumerate() {
        let plain = StandIn::new(0);
        (change.3)(&plain, Extent::Small);
        assert_eq!(plain.end().0, [""; 0], "{} as it is", change.0.name);
        let wrong = said(change, &built, index);
        let first =
            wrong.first().unwrap_or_else(|| panic!("{} with {:?} was not noticed", change.0.name, change.2));
        println!("{:26} {:?}: {first}", change.0.name, change.2);
    }
}

macro_rules! files {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                noticed($name);
            }
        )*

        #[test]
        fn every_file_of_kernels_has_its_test() {
            let names: BTreeSet<_> = FILES.iter().map(|file| file.name).collect();
            assert_eq!(names, BTreeSet::from([$($name),*]));
        }
    };
}

files! {
    a_wrong_fill_is_noticed: "fill.cu",
    a_wrong_copy_is_noticed: "copy.cu",
    a_wrong_gradient_of_an_activation_is_noticed: "gradient_parts.cu",
    a_wrong_sum_of_runs_is_noticed: "sum_parts.cu",
    a_wrong_statistic_is_noticed: "batch_norm_sums.cu",
    a_wrong_sum_of_losses_is_noticed: "loss_sums.cu",
    a_wrong_order_of_ids_is_noticed: "embedding_order.cu",
    a_wrong_blend_is_noticed: "blend.cu",
    a_wrong_addition_is_noticed: "add.cu",
    a_wrong_relu_is_noticed: "relu.cu",
    a_wrong_gelu_is_noticed: "gelu.cu",
    a_wrong_bias_is_noticed: "bias_activation.cu",
    a_wrong_turn_is_noticed: "turn.cu",
    a_wrong_end_of_a_sum_is_noticed: "finish.cu",
    a_wrong_dropout_is_noticed: "dropout.cu",
    a_wrong_half_is_noticed: "half.cu",
    a_wrong_update_is_noticed: "update.cu",
    a_wrong_check_of_finiteness_is_noticed: "finite.cu",
    a_wrong_norm_is_noticed: "squares.cu",
    a_wrong_settlement_is_noticed: "settle.cu",
    a_wrong_sum_in_tree_order_is_noticed: "sum_tree.cu",
    a_wrong_column_sum_is_noticed: "column_sums.cu",
    a_wrong_layer_norm_is_noticed: "layer_norm.cu",
    a_wrong_batch_norm_is_noticed: "batch_norm.cu",
    a_wrong_loss_is_noticed: "losses.cu",
    a_wrong_pooling_is_noticed: "pooling.cu",
    a_wrong_embedding_is_noticed: "embedding.cu",
    a_wrong_product_is_noticed: "product.cu",
    a_wrong_convolution_is_noticed: "conv.cu",
    a_wrong_convolution_on_tensor_cores_is_noticed: "conv_half.cu",
    a_wrong_attention_is_noticed: "attention.cu",
    a_wrong_attention_on_tensor_cores_is_noticed: "attention_half.cu",
    a_wrong_product_on_tensor_cores_is_noticed: "product_half.cu",
}

#[test]
fn a_wrong_way_to_the_next_turn_of_a_loop_is_noticed() {
    if compiler().is_none() {
        return;
    }
    for change in TURNS {
        let built = Built::new(change.0.file, &[mutation(change)]);
        let notices = |order: u32| {
            let q = StandIn::with(&mutation(change), &built, 0).in_order(order);
            (change.3)(&q, Extent::Whole);
            !q.end().0.is_empty()
        };
        assert!(!notices(0), "{} with {:?} has one turn no longer", change.0.name, change.2);
        assert!(notices(1), "{} with {:?} was not noticed", change.0.name, change.2);
    }
}

#[test]
fn the_stand_in_notices_races_lost_threads_and_strayed_writes() {
    if compiler().is_none() {
        return;
    }
    for (change, words) in FAULTS {
        let built = Built::new(change.0.file, &[mutation(change)]);
        let wrong = said(change, &built, 0).join("\n");
        assert!(wrong.contains(words), "{} with {:?}: {wrong:?}", change.0.name, change.2);
        println!("{:26} {words:?}: {}", change.0.name, wrong.lines().next().unwrap_or_default());
    }
}

#[test]
fn the_stand_in_notices_a_read_beyond_memory_that_changes_nothing() {
    if compiler().is_none() {
        return;
    }
    let to = "{ volatile float next = x[i + 1]; y[i] = next == 1e30f ? 0.0f : (float)x[i]; }";
    let change: Change = (&COPY, "y[i] = f(x[i]);", to, elementwise::copy);
    let built = Built::new(COPY.file, &[mutation(&change)]);
    for (edge, noticed) in [(false, false), (true, true)] {
        let q = StandIn::with(&mutation(&change), &built, 0);
        let q = if edge { q.on_the_edge() } else { q };
        (change.3)(&q, Extent::Whole);
        let wrong = q.end().0.join("\n");
        assert_eq!(wrong.contains("is outside of its memory"), noticed, "{wrong}");
        assert_eq!(wrong.is_empty(), !noticed, "{wrong}");
    }
}

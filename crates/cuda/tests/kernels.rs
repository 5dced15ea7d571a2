//! Every operation, run by its kernels on a stand-in for a GPU: right on awkward shapes, within its memory, and the same
//! bits whatever the order of blocks and threads.
//!
//! Needs a C++ compiler; without one these tests say so and pass.

mod stand_in;
#[path = "../../../tests/harness/turn.rs"]
mod turn;

use dtrain_cuda::kernels::FILES;
use stand_in::accesses::Access;
use stand_in::*;
use turn::has_turn;

const POINT_WISE: &[Check] = &[
    elementwise::fill,
    elementwise::copy,
    elementwise::add,
    elementwise::add_to,
    elementwise::relu,
    elementwise::relu_gradient,
    elementwise::gelu,
    elementwise::gelu_gradient,
    elementwise::gelu_tanh,
    elementwise::gelu_tanh_gradient,
    elementwise::sigmoid,
    elementwise::sigmoid_gradient,
    elementwise::unit,
    elementwise::combine,
    elementwise::bias_activation,
    elementwise::askew,
    turning::turn,
    turning::turn_on_the_way,
];
const ROWS: &[Check] = &[rows::copy_rows, rows::class_token, rows::scale_rows, rows::dot_rows];
const GATES: &[Check] = &[gated::swiglu, gated::swiglu_gradient, gated::askew];
const ROTARY: &[Check] = &[rotary::rotary, rotary::rotary_gradient];
const RECURRENT: &[Check] =
    &[recurrent::lstm_cells, recurrent::gru_cells, recurrent::lstm_gradient, recurrent::gru_gradient];
/// So many elements that a grid as large as any has several turns.
const LONG_LISTS: &[Check] = &[elementwise::long_list];
const DROPOUT: &[Check] = &[elementwise::dropout];
const HALVES: &[Check] = &[elementwise::halves::<Bf16>, elementwise::halves::<F16>];
const UPDATES: &[Check] = &[
    update::adamw,
    update::lion,
    update::sgd,
    update::along,
    update::blend,
    settle::weigh,
    settle::settle,
    settle::found_numbers,
];
const SUMS: &[Check] = &[
    sums::column_sums,
    sums::column_sums_of_many_rows,
    sums::sum_of_squares,
    sums::sum_of_many_squares,
    sums::all_finite,
    tree::sum_tree,
];
const LAYER_NORM: &[Check] = &[
    norms::layer_norm,
    norms::layer_norm_gradient,
    norms::layer_norm_without_bias,
    norms::layer_norm_without_bias_gradient,
    norms::rms_norm,
    norms::rms_norm_gradient,
];
const BATCH_NORM: &[Check] = &[norms::batch_norm, norms::batch_norm_by, norms::batch_norm_gradient];
const LOSSES: &[Check] = &[
    losses::cross_entropy,
    losses::mixed_cross_entropy,
    losses::broken_rows,
    losses::squared_error,
    losses::same_bits,
    losses::arg_max,
];
const POOLING: &[Check] = &[pooling::max_pool, pooling::avg_pool];
const EMBEDDINGS: &[Check] = &[embedding::embedding, embedding::embedding_gradient, embedding::wrong_ids];
const PRODUCTS: &[Check] = &[
    product::product,
    product::product_in_tiles,
    product::large_and_long,
    product::strided_product,
    product::linear,
    product::linear_gelu,
    product::linear_gelu_in_tiles,
];
const CONVOLUTIONS: &[Check] = &[
    conv::conv2d,
    conv::conv2d_in_tiles,
    conv::conv2d_input_gradient,
    conv::conv2d_input_gradient_in_tiles,
    conv::conv2d_weight_gradient,
    conv::conv2d_weight_gradient_in_tiles,
    conv::conv3d,
    conv::conv3d_in_tiles,
    conv::conv3d_input_gradient,
    conv::conv3d_input_gradient_in_tiles,
    conv::conv3d_weight_gradient,
    conv::conv3d_weight_gradient_in_tiles,
];
const ATTENTION: &[Check] = &[
    attention::broken_key,
    attention::forward_32,
    attention::gradient_32,
    attention::forward_64,
    attention::gradient_64,
    attention::forward_128,
    attention::gradient_128,
    attention::forward_256,
    attention::gradient_256,
];

const ATTENTION_BF16: &[Check] = &[
    attention_half::forward_32::<Bf16>,
    attention_half::gradient_32::<Bf16>,
    attention_half::forward_64::<Bf16>,
    attention_half::gradient_64::<Bf16>,
    attention_half::forward_128::<Bf16>,
    attention_half::gradient_128::<Bf16>,
];
const PRODUCTS_BF16: &[Check] = &[
    product_half::nt::<Bf16>,
    product_half::nn::<Bf16>,
    product_half::tn::<Bf16>,
    product_half::ranges::<Bf16>,
    product_half::linear::<Bf16>,
    product_half::linear_plus::<Bf16>,
    product_half::linear_gelu::<Bf16>,
];
const STORED_BF16: &[Check] = &[
    stored::point_wise::<Bf16>,
    stored::updates::<Bf16>,
    stored::sums::<Bf16>,
    stored::gradient_and_sums::<Bf16>,
    stored::layer_norm::<Bf16>,
    stored::batch_norm::<Bf16>,
    stored::losses::<Bf16>,
    stored::rows_apart::<Bf16>,
    stored::pooling::<Bf16>,
    stored::embedding::<Bf16>,
    rows::of_halves::<Bf16>,
    gated::of_halves::<Bf16>,
    rotary::of_halves::<Bf16>,
    recurrent::of_halves::<Bf16>,
    stored::product_without_a_kernel::<Bf16>,
    stored::attention_without_a_kernel::<Bf16>,
    conv_half::conv2d::<Bf16>,
    conv_half::conv2d_input_gradient::<Bf16>,
    conv_half::conv2d_weight_gradient::<Bf16>,
    conv_half::conv3d::<Bf16>,
    conv_half::conv3d_input_gradient::<Bf16>,
    conv_half::conv3d_weight_gradient::<Bf16>,
];
const ATTENTION_F16: &[Check] = &[
    attention_half::forward_32::<F16>,
    attention_half::gradient_32::<F16>,
    attention_half::forward_64::<F16>,
    attention_half::gradient_64::<F16>,
    attention_half::forward_128::<F16>,
    attention_half::gradient_128::<F16>,
];
const PRODUCTS_F16: &[Check] = &[
    product_half::nt::<F16>,
    product_half::nn::<F16>,
    product_half::tn::<F16>,
    product_half::ranges::<F16>,
    product_half::linear::<F16>,
    product_half::linear_plus::<F16>,
    product_half::linear_gelu::<F16>,
];
const STORED_F16: &[Check] = &[
    stored::point_wise::<F16>,
    stored::updates::<F16>,
    stored::sums::<F16>,
    stored::gradient_and_sums::<F16>,
    stored::layer_norm::<F16>,
    stored::batch_norm::<F16>,
    stored::losses::<F16>,
    stored::rows_apart::<F16>,
    stored::pooling::<F16>,
    stored::embedding::<F16>,
    rows::of_halves::<F16>,
    gated::of_halves::<F16>,
    rotary::of_halves::<F16>,
    recurrent::of_halves::<F16>,
    stored::product_without_a_kernel::<F16>,
    stored::attention_without_a_kernel::<F16>,
    conv_half::conv2d::<F16>,
    conv_half::conv2d_input_gradient::<F16>,
    conv_half::conv2d_weight_gradient::<F16>,
    conv_half::conv3d::<F16>,
    conv_half::conv3d_input_gradient::<F16>,
    conv_half::conv3d_weight_gradient::<F16>,
];
/// Tiles of 128 need large products, so these run once.
const LARGE_PRODUCTS_OF_HALVES: &[Check] = &[
    product_half::large_nt::<Bf16>,
    product_half::large_nn::<Bf16>,
    product_half::large_tn::<Bf16>,
    product_half::large_nt::<F16>,
    product_half::large_nn::<F16>,
    product_half::large_tn::<F16>,
    product_half::large_linear_gelu::<Bf16>,
    product_half::large_linear_gelu::<F16>,
];

/// Runs checks with threads and blocks first to last, last to first, and shuffled, and with three grids where any does.
fn hold(checks: &[Check]) {
    if build::compiler().is_none() {
        return;
    }
    for check in checks {
        let mut first = None;
        for order in 0..3 {
            let q = StandIn::new(order);
            check(&q, Extent::Whole);
            let (wrong, bits) = q.end();
            assert!(wrong.is_empty(), "in order {order}: {}", wrong.join("\n"));
            assert_eq!(*first.get_or_insert(bits), bits, "order {order} gives other bits");
        }
    }
}

#[test]
fn parameters_are_those_of_the_table() {
    if build::compiler().is_none() {
        return;
    }
    for file in FILES {
        for kernel in file.kernels() {
            assert_eq!(build::built(file).letters(kernel), kernel.parameters, "{}", kernel.name);
        }
    }
}

/// Beside the others: memory that ends where it must not be read either.
#[test]
fn no_kernel_reads_beyond_its_memory() {
    stay_inside(&[
        POINT_WISE,
        ROWS,
        GATES,
        ROTARY,
        RECURRENT,
        LONG_LISTS,
        DROPOUT,
        HALVES,
        UPDATES,
        SUMS,
        LAYER_NORM,
        BATCH_NORM,
        LOSSES,
        POOLING,
        EMBEDDINGS,
        PRODUCTS,
        CONVOLUTIONS,
        ATTENTION,
    ]);
}

#[test]
fn no_kernel_over_halves_reads_beyond_its_memory() {
    if !has_turn(2) {
        return;
    }
    stay_inside(&[
        ATTENTION_BF16,
        ATTENTION_F16,
        PRODUCTS_BF16,
        PRODUCTS_F16,
        STORED_BF16,
        STORED_F16,
        LARGE_PRODUCTS_OF_HALVES,
    ]);
}

fn stay_inside(checks: &[&[Check]]) {
    if build::compiler().is_none() {
        return;
    }
    for check in checks.concat() {
        let q = StandIn::new(0).on_the_edge();
        check(&q, Extent::Whole);
        let (wrong, _) = q.end();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn point_wise_operations_have_the_bits_of_the_cpu() {
    hold(POINT_WISE);
    hold(LONG_LISTS);
}

#[test]
fn rows_are_copied_and_multiplied_as_on_the_cpu() {
    hold(ROWS);
}

#[test]
fn gates_have_the_bits_of_the_cpu() {
    hold(GATES);
}

#[test]
fn rotary_positions_have_the_bits_of_the_cpu() {
    hold(ROTARY);
}

#[test]
fn recurrent_cells_have_the_bits_of_the_cpu() {
    hold(RECURRENT);
}

#[test]
fn dropout_drops_what_the_cpu_drops() {
    hold(DROPOUT);
}

#[test]
fn a_half_is_the_nearest_and_of_two_the_even_one() {
    hold(HALVES);
}

#[test]
fn updates_have_the_bits_of_the_cpu() {
    hold(UPDATES);
}

#[test]
fn sums_over_columns_and_lists_are_right() {
    hold(SUMS);
}

#[test]
fn layer_norm_and_its_gradients_are_right() {
    hold(LAYER_NORM);
}

#[test]
fn batch_norm_and_its_gradients_are_right() {
    hold(BATCH_NORM);
}

#[test]
fn losses_are_right_and_show_what_is_broken() {
    hold(LOSSES);
}

#[test]
fn pooling_has_the_bits_of_the_cpu() {
    hold(POOLING);
}

#[test]
fn embeddings_have_the_bits_of_the_cpu() {
    hold(EMBEDDINGS);
}

#[test]
fn products_have_the_bits_of_the_cpu() {
    hold(PRODUCTS);
}

#[test]
fn convolutions_are_right() {
    hold(CONVOLUTIONS);
}

#[test]
fn attention_and_its_gradient_are_right_for_heads_of_every_width() {
    hold(ATTENTION);
}

#[test]
fn attention_on_tensor_cores_is_right_but_for_the_rounding_of_bf16() {
    hold(ATTENTION_BF16);
}

#[test]
fn attention_on_tensor_cores_is_right_but_for_the_rounding_of_f16() {
    hold(ATTENTION_F16);
}

#[test]
fn products_on_tensor_cores_are_right_but_for_the_rounding_of_bf16() {
    hold(PRODUCTS_BF16);
}

#[test]
fn products_on_tensor_cores_are_right_but_for_the_rounding_of_f16() {
    hold(PRODUCTS_F16);
}

#[test]
fn operations_over_bf16_are_those_of_f32_rounded() {
    hold(STORED_BF16);
}

#[test]
fn operations_over_f16_are_those_of_f32_rounded() {
    if !has_turn(3) {
        return;
    }
    hold(STORED_F16);
}

#[test]
fn a_row_has_the_same_bits_alone_and_stacked() {
    if build::compiler().is_none() {
        return;
    }
    let q = StandIn::new(0);
    stacking::rows_are_the_same_alone(&q);
    let (wrong, _) = q.end();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Kernels and bytes of a thread's accesses, of shared memory, that may take more turns of its banks than half as many again as the
/// least.
const CROWDED: [(&str, u64); 7] = [
    // Eight sums of a thread, once a block, and eight gains, in two turns for one.
    ("column_parts", 16),
    ("gradient_parts", 16),
    ("layer_norm", 16),
    // Rows of 32 halves beside 8 of padding, of heads that are as narrow, in two turns for one.
    ("attention", 16),
    // Pairs of lines that are no neighbours along K: a tenth of what it takes to find where they come from.
    ("conv", 4),
    // Rows that do not begin at 16 bytes, which are fetched one by one.
    ("product", 2),
    ("linear", 2),
];

/// Kernels whose accesses of 16 bytes touch sectors for half of their bytes: a thread's next one has the other half, and finds it in
/// the cache. Eight f32 of a row belong to one thread, in whose order they are added.
const HALF_EMPTY: [&str; 9] = [
    "layer_norm",
    "cross_entropy_f32",
    "mixed_cross_entropy_f32",
    "to_",
    "class_token_bf16",
    "from_",
    "attention_32",
    "attention_queries_32",
    "attention_keys_32",
];

/// Runs checks with each access watched. Places that two threads touch without a barrier between are wrong, and so is shared memory
/// whose banks a warp meets in too often, and memory that it asks for by 16 bytes that do not lie side by side.
fn watch(checks: &[&[Check]]) {
    if build::compiler().is_none() {
        return;
    }
    let q = StandIn::watching();
    checks.concat().iter().for_each(|check| check(&q, Extent::Whole));
    let all = q.accesses();
    assert!(!all.is_empty(), "nothing was watched");
    for ((kernel, places), access) in all {
        let Access { shared, bytes, took, least, .. } = access;
        let wrong = if shared {
            2 * took > 3 * least
                && !CROWDED.iter().any(|(name, some)| kernel.starts_with(name) && bytes == *some)
        } else {
            bytes == 16 && 10 * took > 13 * least && !HALF_EMPTY.iter().any(|name| kernel.starts_with(name))
        };
        let what = if shared { "turns of banks" } else { "bytes" };
        if wrong {
            q.wrong(format!("{kernel}: {took} {what} for {least} at {}", access.place(&places)));
        }
    }
    let (wrong, _) = q.end();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn threads_meet_at_barriers_only_and_ask_for_whole_sectors() {
    if has_turn(5) {
        watch(&[
            POINT_WISE, ROWS, GATES, ROTARY, RECURRENT, DROPOUT, UPDATES, SUMS, LAYER_NORM, BATCH_NORM,
            LOSSES, POOLING, EMBEDDINGS,
        ]);
        watch(&[PRODUCTS, CONVOLUTIONS, ATTENTION]);
    }
}

#[test]
fn threads_over_halves_meet_at_barriers_only_and_ask_for_whole_sectors() {
    if has_turn(10) {
        watch(&[HALVES, ATTENTION_BF16, STORED_BF16]);
    }
}

#[test]
fn threads_over_products_of_halves_meet_at_barriers_only_and_ask_for_whole_sectors() {
    if has_turn(8) {
        watch(&[PRODUCTS_BF16, &[product_half::large_tn::<Bf16>]]);
    }
}

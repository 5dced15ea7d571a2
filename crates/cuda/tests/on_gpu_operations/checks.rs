//! Every check of the stand-in, on the GPU: edges, primes, and sizes that are no multiple of anything, between guard words.

use crate::machine;
use crate::stand_in::*;
use crate::support::{Fake, device, extent};

fn hold(checks: &[Check]) {
    let Some(device) = device() else { return };
    let mut wrong = Vec::new();
    for check in checks {
        let run = || {
            let queue = StandIn::through(&device);
            check(&queue, extent());
            queue.end()
        };
        let (told, bits) = run();
        wrong.extend(told);
        if run().1 != bits {
            wrong.push("a second run gives other bits".to_owned());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    device.finish().expect("a device that works");
    assert_eq!(Fake::new().wrong(), "");
}

#[test]
fn point_wise_operations_hold() {
    use elementwise::*;
    hold(&[
        fill,
        copy,
        add,
        add_to,
        relu,
        relu_gradient,
        gelu,
        gelu_gradient,
        gelu_tanh,
        gelu_tanh_gradient,
        bias_activation,
        askew,
        turning::turn,
        turning::turn_on_the_way,
        dropout,
        halves::<Bf16>,
        halves::<F16>,
    ]);
    hold(&[gated::swiglu, gated::swiglu_gradient, rotary::rotary, rotary::rotary_gradient]);
}

#[test]
fn updates_and_sums_hold() {
    hold(&[update::adamw, update::lion, update::sgd, update::blend]);
    hold(&[settle::weigh, settle::settle, settle::found_numbers]);
    hold(&[
        sums::column_sums,
        sums::column_sums_of_many_rows,
        sums::sum_of_squares,
        sums::all_finite,
        tree::sum_tree,
    ]);
}

#[test]
fn norms_hold() {
    hold(&[norms::layer_norm, norms::layer_norm_gradient]);
    hold(&[norms::layer_norm_without_bias, norms::layer_norm_without_bias_gradient]);
    hold(&[norms::rms_norm, norms::rms_norm_gradient]);
    hold(&[norms::batch_norm, norms::batch_norm_by, norms::batch_norm_gradient]);
}

#[test]
fn losses_hold() {
    hold(&[losses::cross_entropy, losses::broken_rows, losses::squared_error, losses::arg_max]);
}

/// Those that are too slow for the fake GPU.
#[test]
fn long_products_hold() {
    if !machine::is_fake() {
        hold(&[product::large_and_long]);
    }
}

#[test]
fn products_and_convolutions_hold() {
    hold(&[product::product, product::strided_product, product::linear, product::linear_gelu]);
    hold(&[product::product_in_tiles, product::linear_gelu_in_tiles]);
    hold(&[conv::conv2d, conv::conv2d_input_gradient, conv::conv2d_weight_gradient]);
    hold(&[
        conv::conv2d_in_tiles,
        conv::conv2d_input_gradient_in_tiles,
        conv::conv2d_weight_gradient_in_tiles,
    ]);
    hold(&[conv::conv3d, conv::conv3d_input_gradient, conv::conv3d_weight_gradient]);
    hold(&[
        conv::conv3d_in_tiles,
        conv::conv3d_input_gradient_in_tiles,
        conv::conv3d_weight_gradient_in_tiles,
    ]);
}

#[test]
fn operations_over_halves_hold() {
    use conv_half::*;
    use stored::*;
    hold(&[point_wise::<Bf16>, updates::<Bf16>, sums::<Bf16>, gradient_and_sums::<Bf16>]);
    hold(&[layer_norm::<Bf16>, batch_norm::<Bf16>, losses::<Bf16>, pooling::<Bf16>, embedding::<Bf16>]);
    hold(&[gated::of_halves::<Bf16>, rotary::of_halves::<Bf16>]);
    hold(&[rows_apart::<Bf16>, product_without_a_kernel::<Bf16>, attention_without_a_kernel::<Bf16>]);
    hold(&[conv2d::<Bf16>, conv2d_input_gradient::<Bf16>, conv2d_weight_gradient::<Bf16>]);
    hold(&[conv3d::<Bf16>, conv3d_input_gradient::<Bf16>, conv3d_weight_gradient::<Bf16>]);
    hold(&[point_wise::<F16>, updates::<F16>, sums::<F16>, gradient_and_sums::<F16>]);
    hold(&[layer_norm::<F16>, batch_norm::<F16>, losses::<F16>, pooling::<F16>, embedding::<F16>]);
    hold(&[gated::of_halves::<F16>, rotary::of_halves::<F16>]);
    hold(&[rows_apart::<F16>, product_without_a_kernel::<F16>, attention_without_a_kernel::<F16>]);
    hold(&[conv2d::<F16>, conv2d_input_gradient::<F16>, conv2d_weight_gradient::<F16>]);
    hold(&[conv3d::<F16>, conv3d_input_gradient::<F16>, conv3d_weight_gradient::<F16>]);
}

#[test]
fn poolings_and_embeddings_hold() {
    hold(&[pooling::max_pool, pooling::avg_pool]);
    hold(&[embedding::embedding, embedding::embedding_gradient, embedding::wrong_ids]);
}

#[test]
fn attention_holds() {
    use attention::*;
    hold(&[
        forward_32,
        gradient_32,
        forward_64,
        gradient_64,
        forward_128,
        gradient_128,
        forward_256,
        gradient_256,
        broken_key,
    ]);
}

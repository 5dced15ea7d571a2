//! Every check of the stand-in once more, through the driver: what is launched on a stream does what it does there.

use crate::stand_in::*;
use crate::support::{Fake, device};

fn hold(checks: &[Check]) {
    let Some(device) = device() else { return };
    for check in checks {
        let queue = StandIn::through(&device);
        check(&queue, Extent::Small);
        let (wrong, through) = queue.end();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let direct = StandIn::new(0);
        check(&direct, Extent::Small);
        assert_eq!(through, direct.end().1, "the driver gives other bits");
    }
    device.finish().expect("a device that works");
    assert_eq!(Fake::new().wrong(), "");
}

#[test]
fn point_wise_operations_and_updates_do_the_same_through_the_driver() {
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
    hold(&[update::adamw, update::lion, update::sgd, update::blend]);
}

#[test]
fn sums_norms_and_losses_do_the_same_through_the_driver() {
    hold(&[sums::column_sums, sums::sum_of_squares, sums::all_finite, tree::sum_tree]);
    hold(&[norms::layer_norm, norms::layer_norm_gradient]);
    hold(&[norms::layer_norm_without_bias, norms::layer_norm_without_bias_gradient]);
    hold(&[norms::rms_norm, norms::rms_norm_gradient]);
    hold(&[norms::batch_norm, norms::batch_norm_by, norms::batch_norm_gradient]);
    hold(&[losses::cross_entropy, losses::broken_rows, losses::squared_error, losses::arg_max]);
}

#[test]
fn products_convolutions_and_the_rest_do_the_same_through_the_driver() {
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
    hold(&[pooling::max_pool, pooling::avg_pool]);
    hold(&[embedding::embedding, embedding::embedding_gradient, embedding::wrong_ids]);
    hold(&[attention::forward_32, attention::gradient_32, attention::forward_64, attention::gradient_64]);
}

#[test]
fn operations_over_halves_do_the_same_through_the_driver() {
    use conv_half::*;
    use stored::*;
    hold(&[point_wise::<Bf16>, updates::<Bf16>, sums::<Bf16>, gradient_and_sums::<Bf16>]);
    hold(&[layer_norm::<Bf16>, batch_norm::<Bf16>, losses::<Bf16>, pooling::<Bf16>, embedding::<Bf16>]);
    hold(&[rows_apart::<Bf16>, product_without_a_kernel::<Bf16>, attention_without_a_kernel::<Bf16>]);
    hold(&[conv2d::<Bf16>, conv2d_input_gradient::<Bf16>, conv2d_weight_gradient::<Bf16>, conv3d::<Bf16>]);
    hold(&[gated::of_halves::<Bf16>, rotary::of_halves::<Bf16>]);
    // The other kind goes the same way to other kernels, which `kernels.rs` tries.
    hold(&[point_wise::<F16>, conv2d::<F16>]);
}

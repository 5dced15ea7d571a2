//! Each kernel is made wrong in one place, mostly by one sign, and the check of its operation has to notice.
//!
//! To see what noticed: `cargo test -p dtrain-cuda --test mutations -- --nocapture`. Needs a C++ compiler; without one these
//! tests say so and pass. `DTRAIN_MUTATIONS=2/3` tries the second third of each file's changes, for those who come back often.

mod changes;
mod faults;
#[path = "../share/mod.rs"]
mod share;
#[path = "../stand_in/mod.rs"]
mod stand_in;

use changes::{CHANGES, TURNS};
use dtrain_cuda::kernels::{COPY, FILES, FILL, File, Kernel};
use faults::FAULTS;
use stand_in::build::{Built, compiler};
use stand_in::{Check, Extent, Mutation, StandIn, elementwise};
use std::collections::BTreeSet;

/// A kernel, what is changed in its file, and the check that has to fail.
type Change = (&'static Kernel, &'static str, &'static str, Check);

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
    a_wrong_step_to_orthogonality_is_noticed: "orthogonal.cu",
    a_wrong_sigmoid_is_noticed: "sigmoid.cu",
    a_wrong_gate_is_noticed: "swiglu.cu",
    a_wrong_rotary_position_is_noticed: "rotary.cu",
    a_wrong_row_is_noticed: "rows.cu",
    a_wrong_product_of_rows_is_noticed: "row_products.cu",
    a_wrong_recurrent_cell_is_noticed: "recurrent.cu",
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
    a_wrong_convolution_over_images_is_noticed: "conv2d.cu",
    a_wrong_convolution_over_volumes_is_noticed: "conv3d.cu",
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

#[test]
fn the_stand_in_notices_threads_that_write_the_same_at_one_place() {
    if compiler().is_none() {
        return;
    }
    let change: Change = (&FILL, "y[i] = value;", "{ y[i] = value; y[0] = value; }", elementwise::fill);
    let plain = Built::new(FILL.file, &[mutation(&change)]);
    assert_eq!(said(&change, &plain, 0), [""; 0], "nobody sees it by what is written");
    let watched = Built::watched(FILL.file, &[mutation(&change)]);
    let wrong = said(&change, &watched, 0).join("\n");
    assert!(wrong.contains("touches with no barrier between"), "{wrong}");
}

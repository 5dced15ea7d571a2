//! The benchmarked workloads: the same losses as the PyTorch program that they are compared with.

use crate::cpu_with;
use dtrain_engine::models::peer::{self, Work};
use dtrain_engine::{ModelReplica, Replica, micro_batch};
use dtrain_types::{MicroBatch, Seed, Step};

fn losses(work: Work, steps: u64) -> (Vec<f64>, usize) {
    let model = work.model(&cpu_with(2)).expect("the model fits");
    let mut replica =
        ModelReplica::new(cpu_with(2), model, work.optimizer(), Seed(0)).expect("AdamW's defaults");
    let mut state = replica.state().clone();
    peer::initialise(&replica.about().layout, &mut state);
    replica.swap_state(&mut state).expect("memory of the host");
    let data = work.data();
    let mut gradient = vec![0.0; replica.about().gradient_len()];
    let step = |step: u64| {
        let (step, batch) = (Step(step), data.batch());
        let sums = micro_batch(&mut replica, step, MicroBatch(0), &batch, &mut gradient)
            .expect("the batch fits")
            .sums;
        replica.update(step, &gradient, sums.weight, batch.rows as u64).expect("the gradient is finite");
        sums.loss / sums.weight
    };
    let losses = (1..=steps).map(step).collect();
    (losses, work.model(&cpu_with(1)).expect("the model fits").layout().parameters)
}

/// Compares with what `torch_train.py --check 4` printed, 6 digits after the point.
fn check(work: Work, parameters: usize, want: [f64; 4]) {
    let (got, counted) = losses(work, 4);
    assert_eq!(counted, parameters, "{}", work.name());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-5 * want, "{}: {got}, PyTorch has {want}", work.name());
    }
}

#[test]
fn the_mlp_has_pytorchs_losses() {
    check(Work::Mlp, 1_863_690, [2.295848, 1.997751, 1.706867, 1.363774]);
}

#[test]
fn the_gpt_has_pytorchs_losses() {
    check(Work::Gpt, 3_323_392, [5.692543, 5.468087, 5.282948, 5.098465]);
}

#[test]
fn the_cnn_has_pytorchs_losses() {
    check(Work::Cnn, 1_199_882, [2.317389, 2.266803, 2.209688, 2.132755]);
}

#[test]
fn the_cnn_over_frames_has_pytorchs_losses() {
    check(Work::Cnn3d, 341_994, [2.280332, 1.256951, 0.665822, 0.233374]);
}

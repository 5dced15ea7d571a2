//! Losses that are scaled: the same updates as without, and what becomes of steps whose gradient is not finite.

use crate::{compute, cpu};
use dtrain_engine::cpu::Cpu;
use dtrain_engine::models::{CnnOptions, MlpOptions, cnn, mlp, peer};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    BatchFigures, BatchView, Decay, EngineError, Inputs, Loss, LossScale, LossScaling, LrSchedule,
    MicroBatchGroup, Model, ModelReplica, Optimizer, Replica, Rule, Section, State, Targets, UpdateInfo,
    micro_batch,
};
use dtrain_types::{MicroBatch, MicroRange, Seed, Step, Wire};

const ROWS: usize = 4;
const SCALING: LossScaling = LossScaling { start: 1024.0, interval: 3 };

/// What a rule does to parameters must not depend on the scale: clipping, decay, momentum and a learning rate that moves.
fn optimizer() -> Optimizer {
    let decay = Decay::Linear { last: 0.0 };
    Optimizer {
        clip_norm: Some(0.5),
        ..Optimizer::new(Rule::adamw(), LrSchedule { base: 1e-2, warmup: 0, total: 100, decay })
    }
}

/// A CNN with batch norm and dropout over classes, or an MLP over values; in passes over up to so many micro-batches.
fn replica(loss: Loss, scaling: Option<LossScaling>, most: u32) -> ModelReplica<Cpu> {
    let images = CnnOptions { channels: vec![4, 8], hidden: vec![16], ..CnnOptions::default() };
    let (sample, of_values): (&[usize], _) = match loss {
        Loss::CrossEntropy { .. } => (&[1, 8, 8], false),
        Loss::MeanSquaredError => (&[64], true),
    };
    let stages = || match of_values {
        true => mlp(&MlpOptions { hidden: vec![16], ..MlpOptions::default() }, 10),
        false => cnn(&images, 10),
    };
    let model = Model::in_groups(&cpu(), stages, Shape::values(ROWS, sample), loss, most).expect("it fits");
    let model = match scaling {
        Some(scaling) => model.scaling_loss(scaling),
        None => model,
    };
    ModelReplica::new(cpu(), model, optimizer(), Seed(3)).expect("the options make sense")
}

fn classifier(scaling: Option<LossScaling>) -> ModelReplica<Cpu> {
    replica(Loss::cross_entropy(), scaling, 1)
}

struct Data {
    values: Vec<f32>,
    classes: Vec<u32>,
    wanted: Vec<f32>,
}

impl Data {
    fn new() -> Self {
        let values = peer::uniform(1, 2 * ROWS * 64, 1.0);
        Self { values, classes: peer::integers(2, ROWS, 10), wanted: peer::uniform(3, ROWS * 10, 1.0) }
    }

    fn batch(&self, loss: &Loss, m: usize) -> BatchView<'_> {
        let targets = match loss {
            Loss::CrossEntropy { .. } => Targets::Classes(&self.classes),
            Loss::MeanSquaredError => Targets::Values(&self.wanted),
        };
        BatchView { rows: ROWS, inputs: Inputs::Values(&self.values[m * ROWS * 64..][..ROWS * 64]), targets }
    }
}

/// The summed gradient of two micro-batches, and the sum of their weights.
fn gradient(replica: &mut ModelReplica<Cpu>, loss: &Loss, step: Step) -> (Vec<f32>, f64) {
    let (data, mut figures) = (Data::new(), [BatchFigures::default(); 2]);
    let [mut sum, mut other] = [(); 2].map(|()| vec![f32::NAN; replica.about().gradient_len()]);
    if replica.about().group == 1 {
        for (m, to) in [&mut sum, &mut other].into_iter().enumerate() {
            let micro = MicroBatch(m as u32);
            figures[m] = micro_batch(replica, step, micro, &data.batch(loss, m), to).expect("it fits");
        }
        replica.add(Wire::F32, &other, &mut sum);
    } else {
        let group = MicroBatchGroup { step, micro_batches: MicroRange { lo: 0, hi: 2 }, wire: Wire::F32 };
        compute(replica, &group, |m| data.batch(loss, m as usize), &mut sum, &mut figures);
    }
    (sum, figures.iter().map(|figures| figures.sums.weight).sum())
}

fn update(replica: &mut ModelReplica<Cpu>, step: u64, spoil: impl FnOnce(&mut [f32])) -> UpdateInfo {
    let (mut sum, weight) = gradient(replica, &Loss::cross_entropy(), Step(step));
    spoil(&mut sum);
    replica.update(Step(step), &sum, weight, 2 * ROWS as u64).expect("a step that is made or skipped")
}

fn scale(factor: f32, finite_steps: u32) -> Option<LossScale> {
    Some(LossScale { factor, finite_steps })
}

/// The sections of a state, without the loss scale.
fn of_stages(state: &State, replica: &ModelReplica<Cpu>) -> Vec<Vec<u32>> {
    let bits = |section: Section| {
        let all = state.section(section);
        let len = if section == Section::Stats { all.len() - 2 } else { all.len() };
        all[..len].iter().map(|x| x.to_bits()).collect()
    };
    assert!(replica.about().layout.tensor(LossScale::NAME).is_some());
    Section::ALL.map(bits).to_vec()
}

#[test]
fn a_loss_that_is_scaled_gives_the_updates_of_one_that_is_not_bit_for_bit() {
    for (loss, most) in [(Loss::cross_entropy(), 1), (Loss::cross_entropy(), 2), (Loss::MeanSquaredError, 1)]
    {
        let mut plain = replica(loss.clone(), None, most);
        let mut scaled = replica(loss.clone(), Some(LossScaling::default()), most);
        assert_eq!(scaled.about().group, most);
        for step in (1..=3).map(Step) {
            let (wanted, weight) = gradient(&mut plain, &loss, step);
            let (got, same) = gradient(&mut scaled, &loss, step);
            assert_eq!(weight, same);
            // Statistics are those of the forward pass, and the scale has no place in a sum.
            let (parameters, stats) = (plain.about().layout.parameters, plain.about().layout.stats);
            let factor = LossScaling::default().start;
            let times = |i: usize| if i < parameters { factor } else { 1.0 };
            let alike = wanted.iter().zip(&got).enumerate();
            assert!(alike.into_iter().all(|(i, (w, g))| (w * times(i)).to_bits() == g.to_bits()), "{step}");
            assert_eq!(got[parameters + stats..], [0.0, 0.0]);
            let [wanted, got] = [(&mut plain, &wanted), (&mut scaled, &got)].map(|(replica, sum)| {
                replica.update(step, sum, weight, 2 * ROWS as u64).expect("the gradient is finite")
            });
            assert_eq!(wanted, UpdateInfo { loss_scale: None, ..got });
            assert_eq!(got.loss_scale, scale(LossScaling::default().start, step.0 as u32));
        }
        for section in Section::ALL {
            let (plain, scaled) = (plain.state().section(section), scaled.state().section(section));
            assert!(plain.iter().zip(scaled).all(|(a, b)| a.to_bits() == b.to_bits()), "{section:?}");
        }
        let stats = scaled.state().section(Section::Stats);
        assert_eq!(stats[plain.about().layout.stats..], [LossScaling::default().start, 3.0]);
    }
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_but_the_scale_and_counts_as_a_step() {
    let places = {
        let layout = classifier(None);
        [
            0,
            layout.about().layout.parameters - 1,
            layout.about().layout.parameters,
            layout.about().gradient_len() - 1,
        ]
    };
    for place in places {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut replica = classifier(Some(SCALING));
            assert_eq!(update(&mut replica, 1, |_| ()).loss_scale, scale(1024.0, 1));
            let before = replica.state().clone();
            let info = update(&mut replica, 2, |gradient| gradient[place] = bad);
            assert!(info.skipped() && info.loss_scale == scale(512.0, 0), "{info:?}");
            assert_eq!(info.lr, optimizer().schedule.lr(Step(2)));
            assert_eq!(of_stages(replica.state(), &replica), of_stages(&before, &replica));
            assert_eq!(replica.state().applied, Step(2));
            assert_ne!(replica.state().state_digest(), before.state_digest());
            let info = update(&mut replica, 3, |_| ());
            assert!(!info.skipped() && info.loss_scale == scale(512.0, 1), "{info:?}");
            assert_eq!(info.lr, optimizer().schedule.lr(Step(3)));
            assert_ne!(of_stages(replica.state(), &replica), of_stages(&before, &replica));
        }
    }
}

#[test]
fn the_scale_doubles_after_so_many_finite_steps_in_a_row() {
    let mut replica = classifier(Some(SCALING));
    let finite = [true, true, false, true, true, true, true, true, true];
    let seen: Vec<_> = (1..)
        .zip(finite)
        .map(|(step, finite)| {
            let info = update(&mut replica, step, |gradient| {
                if !finite {
                    gradient[0] = f32::INFINITY;
                }
            });
            info.loss_scale.map(|scale| (scale.factor, scale.finite_steps))
        })
        .collect();
    let wanted: [(f32, u32); 9] = [
        (1024.0, 1),
        (1024.0, 2),
        (512.0, 0),
        (512.0, 1),
        (512.0, 2),
        (1024.0, 0),
        (1024.0, 1),
        (1024.0, 2),
        (2048.0, 0),
    ];
    assert_eq!(seen, wanted.map(Some));
}

#[test]
fn without_a_scale_that_could_be_smaller_the_step_fails_and_changes_nothing() {
    let mut replica = classifier(Some(LossScaling { start: 2.0, ..SCALING }));
    let spoil = |gradient: &mut [f32]| gradient[5] = f32::NAN;
    assert_eq!(update(&mut replica, 1, spoil).loss_scale, scale(1.0, 0));
    let before = replica.state().state_digest();
    let (mut sum, weight) = gradient(&mut replica, &Loss::cross_entropy(), Step(2));
    spoil(&mut sum);
    let error = replica.update(Step(2), &sum, weight, 8).expect_err("there is nothing to halve");
    assert_eq!(error, EngineError::NonFinite { step: Step(2) });
    assert_eq!(replica.state().state_digest(), before);
    assert_eq!(update(&mut replica, 2, |_| ()).loss_scale, scale(1.0, 1));
}

#[test]
fn whoever_takes_a_state_goes_on_with_its_scale() {
    let mut first = classifier(Some(SCALING));
    update(&mut first, 1, |gradient| gradient[0] = f32::INFINITY);
    update(&mut first, 2, |_| ());
    let mut second = classifier(Some(SCALING));
    second.swap_state(&mut first.state().clone()).expect("memory of the host");
    for step in 3..=6 {
        let infos = [&mut first, &mut second].map(|replica| update(replica, step, |_| ()));
        assert_eq!(infos[0], infos[1]);
    }
    assert_eq!(first.state().state_digest(), second.state().state_digest());
    let stats = first.state().section(Section::Stats);
    // Halved before step 2, doubled by steps 2 to 4.
    assert_eq!(stats[stats.len() - 2..], [1024.0, 2.0]);
}

#[test]
fn the_scale_is_a_tensor_behind_the_running_statistics() {
    let (plain, scaled) = (classifier(None), classifier(Some(SCALING)));
    let tensor = scaled.about().layout.tensors.last().expect("a model has tensors");
    assert_eq!((tensor.name.as_str(), &tensor.shape[..]), ("loss_scale", &[2][..]));
    assert_eq!((tensor.section, tensor.offset), (Section::Stats, plain.about().layout.stats));
    assert_eq!(scaled.about().layout.gradient_len(), plain.about().layout.gradient_len() + 2);
    assert_eq!(scaled.about().state.stats, plain.about().state.stats + 2);
    assert_eq!(scaled.state().section(Section::Stats)[tensor.offset..], [1024.0, 0.0]);
}

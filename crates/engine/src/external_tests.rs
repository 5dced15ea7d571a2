//! A program of a few lines in the place of PyTorch: least squares, with a statistic that it keeps.

use super::*;
use crate::batch::Targets;
use crate::cpu::{Cpu, CpuOptions, Isa};
use crate::groups::Grouping;
use crate::optimizer::{DecayGroup, Rule};
use crate::own_metric::OwnCounts;
use crate::replica::micro_batch;
use crate::schedule::LrSchedule;
use dtrain_types::{MicroRange, Trailer};

/// `loss = sum (w x + b - 2 x - 1)^2`, and the greatest `x` it has met, as a running statistic.
struct Line;

impl ExternalModel for Line {
    fn compute(
        &mut self,
        state: StateView<'_>,
        batches: &[ExternalBatch<'_>],
        gradient: &mut dyn Gradient,
        sums: &mut [LossSums],
    ) -> Result<(), EngineError> {
        let &[w, b] = state.parameters else { panic!("two parameters") };
        let mut all: Option<[f32; 3]> = None;
        for (batch, sums) in batches.iter().zip(sums) {
            let Inputs::Values(x) = batch.batch.inputs else {
                return Err(EngineError::External("Traceback: no values".into()));
            };
            let mut to = [0.0f32; 2];
            for x in x {
                let off = w * x + b - (2.0 * x + 1.0);
                sums.loss += f64::from(off * off);
                (to[0], to[1]) = (to[0] + 2.0 * off * x, to[1] + 2.0 * off);
            }
            sums.weight = x.len() as f64;
            let met = x.iter().copied().fold(state.stats[0], f32::max) * x.len() as f32;
            let own = [to[0] * batch.loss_scale, to[1] * batch.loss_scale, met];
            all = Some(all.map_or(own, |all| [0, 1, 2].map(|i| all[i] + own[i])));
        }
        let all = all.expect("one at least");
        gradient.part(2..3)[0] = all[2];
        gradient.settle(2);
        gradient.part(0..2).copy_from_slice(&all[..2]);
        gradient.settle(0);
        Ok(())
    }

    fn at_once(&self) -> u32 {
        2
    }

    /// Momentum of its own, whose updates it counts: `kept` is the count, then the momentum.
    fn update(&mut self, update: WholeUpdate<'_>) -> Result<(), EngineError> {
        let [count, kept @ ..] = update.kept else { panic!("it keeps something") };
        *count += 1.0;
        if *count > 5.0 {
            return Err(EngineError::External("Traceback: a sixth update".into()));
        }
        for ((p, g), m) in update.parameters.iter_mut().zip(update.gradient).zip(kept) {
            *m = 0.9 * *m + g * update.scale;
            *p -= update.lr as f32 * *m;
        }
        Ok(())
    }

    fn evaluate(
        &mut self,
        state: StateView<'_>,
        batch: &BatchView<'_>,
        _: &mut [OwnCounts],
    ) -> Result<LossSums, EngineError> {
        Ok(LossSums {
            loss: f64::from(state.parameters[0]),
            weight: batch.rows as f64,
            ..LossSums::default()
        })
    }
}

fn tensors() -> Vec<ExternalTensor> {
    let tensor = |name: &str, shape: &[usize], section| ExternalTensor {
        name: name.into(),
        shape: shape.into(),
        section,
    };
    vec![
        tensor("line.weight", &[1, 1], Section::Parameters),
        tensor("line.bias", &[1], Section::Parameters),
        tensor("greatest", &[], Section::Stats),
    ]
}

fn replica(scaling: Option<LossScaling>) -> ExternalReplica<Cpu> {
    replica_by(Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }, &tensors(), scaling)
}

/// One whose program makes the updates.
fn own_updates(scaling: Option<LossScaling>) -> ExternalReplica<Cpu> {
    let mut tensors = tensors();
    for (name, shape) in [("updates", vec![]), ("line.momentum", vec![2])] {
        tensors.push(ExternalTensor { name: name.into(), shape, section: Section::First });
    }
    replica_by(Rule::External, &tensors, scaling)
}

fn replica_by(rule: Rule, tensors: &[ExternalTensor], scaling: Option<LossScaling>) -> ExternalReplica<Cpu> {
    let device = Cpu::new(CpuOptions { isa: Isa::parse("scalar").expect("every CPU has it"), threads: 1 });
    let optimizer = Optimizer {
        decays: DecayGroup::All,
        ema: Some(0.5),
        ..Optimizer::new(rule, LrSchedule::constant(0.1))
    };
    let device = device.expect("one thread");
    let mut replica =
        ExternalReplica::blank(device, Box::new(Line), tensors, scaling, (optimizer, &Grouping::default()))
            .expect("sane");
    replica.begin_with(&[0.5, -1.0], &[0.25]);
    replica
}

fn batch<'a>(x: &'a [f32]) -> BatchView<'a> {
    BatchView { rows: x.len(), inputs: Inputs::Values(x), targets: Targets::Values(&[]) }
}

/// One step of two micro-batches.
fn step(replica: &mut ExternalReplica<Cpu>, step: Step) -> (Trailer, UpdateInfo) {
    let len = replica.about().gradient_len();
    let [mut one, mut two] = [vec![f32::NAN; len], vec![f32::NAN; len]];
    let mut trailer = Trailer::EMPTY;
    for (m, (x, gradient)) in
        [(&[1.0f32, 2.0, 3.0][..], &mut one), (&[-1.0][..], &mut two)].into_iter().enumerate()
    {
        let m = MicroBatch(m as u32);
        let figures = micro_batch(replica, step, m, &batch(x), gradient).expect("it computes");
        trailer = if m.0 == 0 { figures.trailer(m, 0) } else { trailer.merge(&figures.trailer(m, 0)) };
    }
    replica.add(Wire::F32, &two, &mut one);
    let info = replica.update(step, &one, trailer.weight, trailer.samples).expect("it is finite");
    (trailer, info)
}

#[test]
fn it_learns_and_its_statistic_is_the_mean_of_what_micro_batches_leave_behind() {
    let mut replica = replica(None);
    let (first, _) = step(&mut replica, Step(1));
    assert_eq!(first.samples, 4);
    // Three rows saw 3, one saw no more than the 0.25 that was there.
    assert_eq!(replica.bring_state().expect("here").section(Section::Stats), [(3.0 * 3.0 + 0.25) / 4.0]);
    for n in 2..=200 {
        step(&mut replica, Step(n));
    }
    let (last, _) = step(&mut replica, Step(201));
    assert!(last.loss < first.loss * 1e-6, "{} after {}", last.loss, first.loss);
    let parameters = replica.bring_state().expect("here").section(Section::Parameters).to_vec();
    assert!((parameters[0] - 2.0).abs() < 1e-3 && (parameters[1] - 1.0).abs() < 1e-3, "{parameters:?}");
}

#[test]
fn a_scaled_loss_changes_no_bit_and_its_scale_lies_behind_the_statistics() {
    let [mut plain, mut scaled] = [replica(None), replica(Some(LossScaling { start: 1024.0, interval: 2 }))];
    assert_eq!(scaled.about().gradient_len(), plain.about().gradient_len() + 2);
    for n in 1..=3 {
        let [(_, one), (_, other)] = [&mut plain, &mut scaled].map(|replica| step(replica, Step(n)));
        assert_eq!(one.gradient_norm, other.gradient_norm);
    }
    let parameters = |replica: &mut ExternalReplica<Cpu>| {
        replica.bring_state().expect("here").section(Section::Parameters).to_vec()
    };
    assert_eq!(parameters(&mut plain), parameters(&mut scaled));
    assert_eq!(
        scaled.bring_state().expect("here").section(Section::Stats)[1..],
        [2048.0, 1.0],
        "doubled after two"
    );
}

#[test]
fn updates_that_the_program_makes_change_parameters_and_what_it_keeps_and_all_of_it_is_the_state() {
    let [mut ours, mut theirs] = [
        replica_by(Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }, &tensors(), None),
        own_updates(None),
    ];
    for n in 1..=3 {
        let [(_, one), (_, other)] = [&mut ours, &mut theirs].map(|replica| step(replica, Step(n)));
        assert_eq!(one, other);
    }
    assert!(ours.may_share() && !theirs.may_share(), "nobody makes a share of them");
    let mut copy = State::zeros(theirs.about().state);
    let (ours, state) = (ours.bring_state().expect("here"), theirs.bring_state().expect("here"));
    assert_eq!(state.applied, Step(3));
    for section in [Section::Parameters, Section::Average] {
        for (one, other) in ours.section(section).iter().zip(state.section(section)) {
            assert!((one - other).abs() < 1e-5, "{section:?}: {one} and {other}");
        }
    }
    let [count, momentum @ ..] = state.section(Section::First) else { panic!("a count and a momentum") };
    assert_eq!((*count, momentum.len()), (3.0, 2));
    // Another replica goes on from a copy with the same bits.
    copy.applied = state.applied;
    for section in Section::ALL {
        copy.section_mut(section).copy_from_slice(state.section(section));
    }
    let mut other = own_updates(None);
    other.swap_state(&mut copy).expect("it is alike");
    let digests = [&mut theirs, &mut other].map(|replica| {
        step(replica, Step(4));
        replica.bring_state().expect("here").state_digest()
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn an_update_that_is_skipped_is_not_the_programs_and_its_error_is_that_of_the_update() {
    let mut replica = own_updates(Some(LossScaling { start: 1024.0, interval: 100 }));
    let info = replica.update(Step(1), &[f32::INFINITY, 0.0, 0.0, 0.0, 0.0], 1.0, 1).expect("it is skipped");
    assert!(info.skipped());
    let state = replica.bring_state().expect("here");
    assert_eq!((state.section(Section::First), state.applied), (&[0.0, 0.0, 0.0][..], Step(1)));
    for n in 2..=6 {
        replica.update(Step(n), &[1.0, 1.0, 0.0, 0.0, 0.0], 1.0, 1).expect("the first five");
    }
    let error = replica.update(Step(7), &[1.0, 1.0, 0.0, 0.0, 0.0], 1.0, 1);
    assert_eq!(error, Err(EngineError::External("Traceback: a sixth update".into())));
}

#[test]
fn what_is_sent_in_half_is_rounded_part_by_part() {
    let mut replica = replica(None);
    let group =
        MicroBatchGroup { step: Step(1), micro_batches: MicroRange { lo: 0, hi: 1 }, wire: Wire::Bf16 };
    let (mut gradient, mut figures) = (vec![f32::NAN; 3], [BatchFigures::default()]);
    let x = [1.003f32, 0.7];
    replica.compute(&group, &batch(&x), &mut &mut gradient[..], &mut figures).expect("it computes");
    assert!(gradient.iter().all(|g| g.to_bits() & 0xffff == 0 && g.is_finite()), "{gradient:?}");
}

#[test]
fn two_at_once_have_the_bits_of_one_after_the_other() {
    let mut replica = replica(Some(LossScaling { start: 1024.0, interval: 2 }));
    let xs: [&[f32]; 2] = [&[1.003, 0.7, 0.1], &[-5.3]];
    let [mut one, mut two] = [vec![f32::NAN; 5], vec![f32::NAN; 5]];
    let mut alone = [BatchFigures::default(); 2];
    for ((m, x), to) in (6..).zip(xs).zip([&mut one, &mut two]) {
        alone[m as usize - 6] =
            micro_batch(&mut replica, Step(1), MicroBatch(m), &batch(x), to).expect("it computes");
    }
    replica.add(Wire::F32, &two, &mut one);
    let group = MicroBatchGroup {
        micro_batches: MicroRange { lo: 6, hi: 8 },
        ..MicroBatchGroup::of_one(Step(1), MicroBatch(6))
    };
    let (mut both, mut figures) = (vec![f32::NAN; 5], [BatchFigures::default(); 2]);
    for _ in 0..2 {
        replica.prefetch(&group, MicroBatch(6), &batch(xs[0])).expect("it is copied");
        replica.compute(&group, &batch(xs[1]), &mut &mut both[..], &mut figures).expect("it computes");
        assert_eq!((&both, figures), (&one, alone));
    }
    assert_eq!(replica.about().group, 2);
    replica.take_one_at_a_time();
    assert_eq!(replica.about().group, 1);
}

#[test]
fn an_error_of_the_program_is_the_error_of_the_pass() {
    let mut replica = replica(None);
    let tokens = BatchView { rows: 1, inputs: Inputs::Tokens(&[1]), targets: Targets::Values(&[]) };
    let error = micro_batch(&mut replica, Step(1), MicroBatch(0), &tokens, &mut [0.0; 3]);
    assert_eq!(error, Err(EngineError::External("Traceback: no values".into())));
}

#[test]
fn tensors_lie_in_the_order_in_which_they_are_given_each_a_stage() {
    let layout = external_layout(&tensors(), None);
    assert_eq!((layout.parameters, layout.stats), (2, 1));
    assert_eq!(
        layout.tensors.iter().map(|t| (t.offset, t.decays)).collect::<Vec<_>>(),
        [(0, true), (1, false), (0, false)]
    );
    assert_eq!(layout.stages.iter().map(|s| s.parameters.clone()).collect::<Vec<_>>(), [0..1, 1..2]);
}

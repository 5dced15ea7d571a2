//! Replicas that have their state in common, in a real arena: the bits of one replica that does everything, whoever does which share,
//! and an update that is done to its end, or not at all, whenever one of them is lost.

use dtrain_collective::Geometry;
use dtrain_engine::cpu::{Cpu, CpuOptions, Isa};
use dtrain_engine::device::NORM_BLOCK;
use dtrain_engine::models::{MlpOptions, mlp, peer};
use dtrain_engine::stage::Shape;
use dtrain_engine::{
    EngineError, Grouping, Loss, LossScaling, LrSchedule, Model, ModelReplica, Optimizer, PARTS, Replica,
    Rule, Section, Sharing, State, UpdateInfo, UpdateShare, shared_shape,
};
use dtrain_transport::{ArenaFile, Mapping, ShmState};
use dtrain_types::{Seed, SharedState, Step, WorldSize};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A replica's part in the state that it shares.
fn sharing(replica: &mut ModelReplica<Cpu>) -> &mut dyn Sharing {
    replica.sharing().expect("it was given memory")
}

const SAMPLES: u64 = 8;
const STEPS: u64 = 4;

fn momentum(momentum: f32) -> Rule {
    Rule::Sgd { momentum, nesterov: momentum > 0.0, weight_decay: 0.02 }
}

fn optimizer(rule: Rule) -> Optimizer {
    Optimizer { clip_norm: Some(3.0), ema: Some(0.9), ..Optimizer::new(rule, LrSchedule::constant(1e-2)) }
}

/// An MLP with running statistics, of some five blocks of the norm, the last of which is short.
fn replica(rule: Rule, threads: usize, scaling: Option<LossScaling>) -> ModelReplica<Cpu> {
    let device = Cpu::new(CpuOptions { isa: Isa::best(), threads }).expect("this CPU");
    let options = MlpOptions { hidden: vec![200, 60], batch_norm: true, ..MlpOptions::default() };
    let stages = mlp(&options, 10).expect("it makes sense");
    let model = Model::new(&device, stages, Shape::values(4, &[40]), Loss::cross_entropy()).expect("it fits");
    let grouping = Grouping {
        lr_factors: vec![("*bias".into(), 0.5)],
        no_decay: vec!["1.*".into()],
        ..Grouping::default()
    };
    let model = model.grouped(&grouping).expect("there are such parameters");
    let model = match scaling {
        Some(scaling) => model.scaling_loss(scaling),
        None => model,
    };
    ModelReplica::new(device, model, optimizer(rule), Seed(5)).expect("it makes sense")
}

fn arena(replica: &dyn Replica) -> Arc<Mapping> {
    let geometry = Geometry { len: replica.about().gradient_len(), root_slots: 1, scratch_slots: 0 };
    let file = ArenaFile::with_state(WorldSize(3), geometry, shared_shape(replica.about().state, 3));
    file.and_then(|file| file.map()).expect("an arena")
}

fn state(mapping: &Arc<Mapping>) -> Box<ShmState> {
    Box::new(ShmState::of(mapping).expect("it has room for one"))
}

/// Replicas that have all adopted the state of the first one.
fn in_common(mut replicas: Vec<ModelReplica<Cpu>>) -> Vec<ModelReplica<Cpu>> {
    let mapping = arena(&replicas[0]);
    replicas.iter_mut().for_each(|replica| replica.share(state(&mapping)));
    sharing(&mut replicas[0]).publish();
    assert!(replicas.iter_mut().all(|replica| sharing(replica).adopt(Step(0))));
    replicas
}

fn gradient(replica: &dyn Replica, step: u64) -> Vec<f32> {
    let mut all = peer::uniform(step, replica.about().gradient_len(), 1.0);
    // Sums of variances are not negative.
    all[replica.about().layout.parameters..].iter_mut().for_each(|sum| *sum = sum.abs());
    all
}

/// Every replica looks at its share. The last one first: the order of shares is nobody's affair.
fn measure<'a>(
    replicas: impl DoubleEndedIterator<Item = &'a mut ModelReplica<Cpu>> + ExactSizeIterator,
    step: u64,
    gradient: &[f32],
) {
    let of = replicas.len();
    for (index, replica) in replicas.enumerate().rev() {
        sharing(replica).measure(Step(step), gradient, 8.0, SAMPLES, UpdateShare { index, of });
    }
}

/// Does its share of the update that all have measured, and tells whether it did.
fn share(replica: &mut ModelReplica<Cpu>, gradient: &[f32]) -> bool {
    sharing(replica).settle().expect("it is finite, or the loss is scaled");
    sharing(replica).update_share(gradient)
}

/// A step, and what all say of it.
fn step_of_all(replicas: &mut [ModelReplica<Cpu>], step: u64, gradient: &[f32]) -> UpdateInfo {
    measure(replicas.iter_mut(), step, gradient);
    let said: Vec<_> =
        replicas.iter_mut().map(|replica| sharing(replica).settle().expect("it is settled")).collect();
    assert!(said.iter().all(|info| *info == said[0]), "{said:?}");
    assert!(replicas.iter_mut().rev().all(|replica| share(replica, gradient)));
    replicas.iter_mut().for_each(|replica| sharing(replica).commit(Step(step)));
    said[0]
}

fn digest(state: &State) -> [u8; 32] {
    state.state_digest()
}

#[test]
fn the_shares_of_an_update_have_the_bits_of_the_whole() {
    for rule in [Rule::adamw(), momentum(0.9), momentum(0.0)] {
        let mut whole = replica(rule, 1, None);
        let worlds = [1, 2, 3].map(|world| (0..world).map(|n| replica(rule, 1 + n % 2, None)).collect());
        let mut worlds = worlds.map(in_common);
        for step in 1..=STEPS {
            let gradient = gradient(&whole, step);
            let info = whole.update(Step(step), &gradient, 8.0, SAMPLES).expect("it is finite");
            for replicas in &mut worlds {
                assert_eq!(step_of_all(replicas, step, &gradient), info, "{rule:?} in step {step}");
                for replica in replicas.iter() {
                    assert_eq!(replica.applied(), Step(step));
                    assert_eq!(digest(replica.state()), digest(whole.state()), "{rule:?} in step {step}");
                }
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_skipped_by_all_where_the_loss_is_scaled() {
    let made = || replica(Rule::adamw(), 1, Some(LossScaling::default()));
    let (mut whole, mut replicas) = (made(), in_common(vec![made(), made()]));
    let before = whole.state().clone();
    for step in 1..=STEPS {
        let mut gradient = gradient(&whole, step);
        gradient[17] = if step == 2 { f32::INFINITY } else { gradient[17] };
        let info = whole.update(Step(step), &gradient, 8.0, SAMPLES).expect("the loss is scaled");
        assert_eq!(info.skipped(), step == 2);
        assert_eq!(step_of_all(&mut replicas, step, &gradient), info);
        assert!(
            replicas.iter().all(|replica| digest(replica.state()) == digest(whole.state())),
            "step {step}"
        );
    }
    assert_ne!(digest(&before), digest(whole.state()));
}

#[test]
fn one_that_is_not_finite_changes_nothing_where_it_is_not() {
    let mut replicas = in_common(vec![replica(Rule::adamw(), 1, None), replica(Rule::adamw(), 1, None)]);
    let before = digest(replicas[0].state());
    let good = gradient(&replicas[0], 1);
    // In the share of either one, and in the sums of the statistics, at which only one of them looks.
    for at in [17, good.len() / 2 + NORM_BLOCK, replicas[0].about().layout.parameters + 1] {
        let mut bad = good.clone();
        bad[at] = f32::NAN;
        measure(replicas.iter_mut(), 1, &bad);
        for replica in &mut replicas {
            let refused = sharing(replica).settle();
            assert!(matches!(refused, Err(EngineError::NonFinite { step: Step(1) })), "{refused:?}");
            assert_eq!(digest(replica.state()), before);
        }
    }
    // What was seen of a bad one is not held against the next.
    step_of_all(&mut replicas, 1, &good);
}

/// An arena whose replicas come and go, and one replica that does everything.
struct Host {
    mapping: Arc<Mapping>,
    whole: ModelReplica<Cpu>,
}

impl Host {
    fn new() -> Self {
        let whole = replica(Rule::adamw(), 1, None);
        let host = Self { mapping: arena(&whole), whole };
        sharing(&mut host.participant()).publish();
        host
    }

    /// A replica that has just come.
    fn participant(&self) -> ModelReplica<Cpu> {
        let mut replica = replica(Rule::adamw(), 1, None);
        replica.share(state(&self.mapping));
        replica
    }

    /// One that has the state of all.
    fn adopted(&self, applied: u64) -> ModelReplica<Cpu> {
        let mut replica = self.participant();
        assert!(sharing(&mut replica).adopt(Step(applied)));
        replica
    }

    fn digest_after(&mut self, step: u64, gradient: &[f32]) -> [u8; 32] {
        self.whole.update(Step(step), gradient, 8.0, SAMPLES).expect("it is finite");
        digest(self.whole.state())
    }
}

#[test]
fn an_update_that_somebody_began_is_done_to_its_end_whoever_is_lost() {
    let mut host = Host::new();
    for step in 1..=STEPS {
        let (mut first, mut second) = (host.adopted(step - 1), host.adopted(step - 1));
        let gradient = gradient(&host.whole, step);
        measure([&mut first, &mut second].into_iter(), step, &gradient);
        let said = sharing(&mut second).settle().expect("it is finite");
        assert!(share(&mut second, &gradient));
        // The second one is gone, the first one is told to leave, and finds out that the update is decided, and what it came to.
        drop(second);
        sharing(&mut first).close();
        assert_eq!((first.applied(), sharing(&mut first).settle()), (Step(step), Ok(said)));
        // Whoever comes completes it, with the gradient that is still there.
        let mut third = host.participant();
        assert!(step % 2 == 0 || sharing(&mut first).complete(&gradient).is_ok());
        assert!(step % 2 == 1 || sharing(&mut third).complete(&gradient).is_ok());
        assert!(
            !sharing(&mut third).adopt(Step(step - 1))
                && sharing(&mut third).adopt(Step(step))
                && sharing(&mut first).adopt(Step(step))
        );
        let wanted = host.digest_after(step, &gradient);
        assert_eq!((digest(first.state()), digest(third.state())), (wanted, wanted));
    }
}

#[test]
fn an_update_that_nobody_began_is_not_made_once_the_state_is_closed() {
    let mut host = Host::new();
    let (mut first, mut second) = (host.adopted(0), host.adopted(0));
    let mut gradient = gradient(&host.whole, 1);
    let before = digest(first.state());
    measure([&mut first, &mut second].into_iter(), 1, &gradient);
    sharing(&mut first).settle().expect("it is finite");
    sharing(&mut first).close();
    assert!(!share(&mut second, &gradient) && !sharing(&mut first).update_share(&gradient));
    sharing(&mut second).close();
    assert_eq!((first.applied(), second.applied()), (Step(0), Step(0)));
    // What lies in the slots by then is nobody's gradient.
    sharing(&mut first).complete(&vec![f32::NAN; gradient.len()]).expect("there is nothing to do");
    assert_eq!(digest(first.state()), before);
    measure([&mut first, &mut second].into_iter(), 1, &gradient);
    assert!(share(&mut first, &gradient) && share(&mut second, &gradient));
    sharing(&mut first).commit(Step(1));
    sharing(&mut second).commit(Step(1));
    assert_eq!(digest(first.state()), host.digest_after(1, &gradient));
    // Nor is an update completed that is: the slots have gone on.
    sharing(&mut first).close();
    gradient.fill(f32::NAN);
    sharing(&mut second).complete(&gradient).expect("there is nothing to do");
    assert_eq!(digest(second.state()), digest(host.whole.state()));
}

/// The words and areas of `crates/engine/src/shared_memory.rs`.
const SHARES: usize = 16;
const STRIDE: usize = 16;
const COUNT: u32 = 24;
const BLOCK: usize = 256;
const JOURNALS: usize = 6;

#[test]
fn a_block_that_is_torn_is_taken_from_the_journal() {
    for (index, of) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
        let mut host = Host::new();
        let mut replicas: Vec<_> = (0..of).map(|_| host.adopted(0)).collect();
        let before = replicas[0].state().clone();
        let gradient = gradient(&host.whole, 1);
        measure(replicas.iter_mut(), 1, &gradient);
        assert!(replicas.iter_mut().all(|replica| share(replica, &gradient)));
        let wanted = host.digest_after(1, &gradient);
        let after = host.whole.state();
        // As if one had been killed in its second block: that one is in its journal, and anything in its place; what comes
        // behind is old.
        let memory = state(&host.mapping);
        let part = UpdateShare { index, of }.part(before.section(Section::Parameters).len(), BLOCK);
        assert!(part.len() > 2 * BLOCK, "{part:?}");
        let torn = part.start + BLOCK..part.start + 2 * BLOCK;
        for (area, section) in
            [Section::Parameters, Section::First, Section::Second, Section::Average].into_iter().enumerate()
        {
            let (mut floats, mut journals) = (memory.floats(area), memory.floats(JOURNALS));
            let old = before.section(section);
            floats.part(torn.start..part.end).copy_from_slice(&old[torn.start..part.end]);
            let journal = (index * PARTS + area) * BLOCK;
            let new = &after.section(section)[torn.clone()];
            journals.part(journal..journal + BLOCK).copy_from_slice(new);
            floats.part(torn.clone()).fill(f32::NAN);
        }
        memory.words()[SHARES + STRIDE * index].store(1 << COUNT | 1, Ordering::SeqCst);
        memory.words()[SHARES + STRIDE * index + 1].store(1 << COUNT | 2, Ordering::SeqCst);
        replicas.iter_mut().for_each(|replica| sharing(replica).close());
        let mut next = host.participant();
        sharing(&mut next).complete(&gradient).expect("what was decided");
        assert!(sharing(&mut next).adopt(Step(1)));
        assert_eq!(digest(next.state()), wanted, "share {index} of {of}");
    }
}

#[test]
fn a_state_that_is_loaded_takes_the_place_of_all_that_was_there() {
    let mut replicas = in_common(vec![replica(Rule::adamw(), 1, None), replica(Rule::adamw(), 1, None)]);
    for step in 1..=3 {
        let gradient = gradient(&replicas[0], step);
        step_of_all(&mut replicas, step, &gradient);
    }
    let [first, second] = &mut replicas[..] else { unreachable!() };
    let shared = digest(first.state());
    let mut loaded = State::zeros(first.about().state);
    loaded.applied = Step(2);
    let wanted = digest(&loaded);
    first.swap_state(&mut loaded).expect("the same shape");
    assert_eq!((digest(&loaded), digest(second.state())), (shared, shared), "what others read is as it was");
    sharing(first).publish();
    assert!(
        !sharing(second).adopt(Step(3)) && sharing(second).adopt(Step(2)) && sharing(first).adopt(Step(2))
    );
    assert_eq!((digest(first.state()), digest(second.state())), (wanted, wanted));
}

#[test]
#[should_panic(expected = "memory for another model")]
fn memory_for_another_model_is_refused() {
    let mapping = arena(&replica(momentum(0.9), 1, None));
    replica(Rule::adamw(), 1, None).share(state(&mapping));
}

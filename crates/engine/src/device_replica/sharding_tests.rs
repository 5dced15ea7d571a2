//! Replicas on devices of their own that hold shards of a state, beside one that has all of it.

use super::on_cpu::{optimizer, scale};
use super::tests::{ROWS, device};
use super::*;
use crate::batch::Targets;
use crate::cpu::Cpu;
use crate::device::NORM_BLOCK;
use crate::loss::Loss;
use crate::loss_scale::LossScaling;
use crate::models::{CnnOptions, cnn, peer};
use crate::replica::micro_batch;
use crate::sharding::{Lies, Piece, ReducedSum, Words, word_cuts};
use crate::sharing::UpdateShare;
use crate::stage::Shape;
use dtrain_types::{Holders, Holding, NodeId, Rank, ShardLevel};

/// Replicas that hold shards, each of them on two, and one that has all of the state.
struct Peers {
    whole: DeviceReplica<Cpu>,
    held: Vec<DeviceReplica<Cpu>>,
    holders: Holders,
}

fn holders(world: usize) -> Holders {
    Holders::new(&vec![NodeId(0); world], 2)
}

impl Peers {
    fn new(world: usize, model: impl Fn() -> Model<Cpu>) -> Self {
        let whole = DeviceReplica::new(device(), model(), optimizer(), Seed(3)).expect("there is memory");
        let in_shards = Optimizer { keeps: Keeps::Shards(ShardLevel::Optimizer), ..optimizer() };
        let one = |_| DeviceReplica::new(device(), model(), in_shards, Seed(3)).expect("there is memory");
        let mut peers = Self { whole, held: (0..world).map(one).collect(), holders: holders(world) };
        for (replica, rank) in peers.held.iter_mut().zip(0..) {
            assert!(replica.sharding().is_some() && replica.holding().is_none());
            let moments = replica.prepare(&peers.holders.holding(Rank(rank))).expect("there is memory");
            replica.adopt(moments, Step(0)).expect("there is memory");
        }
        peers
    }

    /// A step with this gradient, of which everybody makes what it is to make, and has the rest from the owners: by the host, or in the gradient that
    /// is kept. Those who `stop` have measured and make the update later.
    fn step(&mut self, step: Step, gradient: &[f32], kept: bool, stop: &[usize]) {
        let info = self.whole.update(step, gradient, ROWS as f64, ROWS as u64).expect("made or skipped");
        let of = self.held.len();
        for (index, replica) in self.held.iter_mut().enumerate() {
            let lies = match kept {
                true => {
                    replica.gradients[0].copy_from_slice(gradient);
                    Lies::Kept
                }
                false => Lies::Home(gradient),
            };
            let sum = ReducedSum { lies, weight: ROWS as f64, samples: ROWS as u64 };
            let share = UpdateShare { index, of };
            replica.measure(step, sum, share).expect("memory of the host");
            assert_eq!((replica.measured(), replica.applied()), (None, Step(step.0 - 1)));
        }
        self.agree(kept);
        for (_, replica) in self.held.iter_mut().enumerate().filter(|(at, _)| !stop.contains(at)) {
            assert_eq!(replica.settle().expect("made or skipped"), info);
            replica.update_held(None).expect("memory of the host");
            assert_eq!((replica.measured(), replica.applied()), (None, step));
        }
        if !stop.is_empty() {
            return;
        }
        let parameters = self.whole.about().layout.parameters;
        let cuts = self.holders.cuts(parameters);
        for owner in 0..self.held.len() {
            let own = cuts[owner]..cuts[owner + 1];
            let mut values = vec![f32::NAN; own.len()];
            self.held[owner].lay(own.clone());
            self.held[owner].read(Section::Parameters, own.start, &mut values).expect("memory of the host");
            assert_eq!(values, self.held[owner].gradients[0][own.clone()]);
            for (at, replica) in self.held.iter_mut().enumerate().filter(|(at, _)| *at != owner) {
                if kept {
                    replica.gradients[0][own.clone()].copy_from_slice(&values);
                    replica.pick(own.clone());
                } else {
                    replica.write(Section::Parameters, own.start, &values).expect("memory of the host");
                }
                assert_ne!(at, owner);
            }
        }
        self.held.iter_mut().for_each(|replica| replica.commit(step));
    }

    /// All hear what each has seen in its share.
    fn agree(&mut self, kept: bool) {
        let of = self.held.len();
        let cuts = word_cuts(self.whole.about().layout.parameters, of);
        let mut all = vec![f32::NAN; cuts[of]];
        for (index, replica) in self.held.iter_mut().enumerate() {
            let own = cuts[index]..cuts[index + 1];
            if kept {
                replica.tell(Words::Kept(own.clone())).expect("memory of the host");
                all[own.clone()].copy_from_slice(&replica.gradients[0][own]);
            } else {
                replica.tell(Words::Home(&mut all[own])).expect("memory of the host");
            }
        }
        for replica in &mut self.held {
            replica.gradients[0][..all.len()].copy_from_slice(&all);
            let words = if kept { Words::Kept(0..all.len()) } else { Words::Home(&mut all) };
            replica.hear(words).expect("memory of the host");
            assert!(replica.measured().is_some());
        }
    }

    /// What they hold is handed out among so many, of whom these are the old ones.
    fn share_out(&mut self, stay: &[usize], step: Step) {
        let mut held: Vec<_> = std::mem::take(&mut self.held).into_iter().map(Some).collect();
        self.held = stay.iter().map(|at| held[*at].take().expect("each stays once")).collect();
        let holdings: Vec<Holding> = self.held.iter().map(|replica| replica.holding().clone()).collect();
        self.holders = holders(stay.len());
        let pieces = Piece::all(self.whole.about().state, &holdings, &self.holders, Section::is_of_moments)
            .expect("all is held");
        let ranks = (0..stay.len() as u32).map(Rank);
        let mut moments: Vec<_> = self
            .held
            .iter_mut()
            .zip(ranks)
            .map(|(replica, rank)| replica.prepare(&self.holders.holding(rank)).expect("there is memory"))
            .collect();
        for piece in pieces {
            let mut values = vec![f32::NAN; piece.elements.len()];
            self.held[piece.source.index()]
                .read(piece.section, piece.elements.start, &mut values)
                .expect("it is there");
            for target in &piece.targets {
                match piece.section.is_of_moments() {
                    true => moments[target.index()]
                        .part_mut(piece.section, piece.elements.clone())
                        .copy_from_slice(&values),
                    false => self.held[target.index()]
                        .write(piece.section, piece.elements.start, &values)
                        .expect("memory of the host"),
                }
            }
        }
        for (replica, moments) in self.held.iter_mut().zip(moments) {
            replica.adopt(moments, step).expect("there is memory");
        }
    }

    /// Everybody has what it is to have.
    fn are_one(&mut self) {
        let whole = self.whole.bring_state().expect("memory of the host").clone();
        for (replica, rank) in self.held.iter_mut().zip(0..) {
            let state = replica.bring_state().expect("memory of the host");
            assert_eq!(state.common_digest(), whole.common_digest(), "rank {rank}");
            assert_eq!(replica.loss_scale, self.whole.loss_scale);
            for section in Section::MOMENTS {
                let all = whole.section(section);
                assert!(all.iter().any(|value| *value != 0.0));
                for run in self.holders.holding(Rank(rank)).elements(all.len()) {
                    let mut values = vec![f32::NAN; run.len()];
                    replica.read(section, run.start, &mut values).expect("memory of the host");
                    assert_eq!(values, all[run]);
                }
            }
        }
    }
}

fn gradient(whole: &mut DeviceReplica<Cpu>, step: Step, scaled: bool) -> Vec<f32> {
    let (values, classes) = (peer::uniform(step.0, ROWS * 64, 1.0), peer::integers(3, ROWS, 10));
    let batch =
        BatchView { rows: ROWS, inputs: Inputs::Values(&values), targets: Targets::Classes(&classes) };
    if scaled {
        scale(whole.loss_scale.expect("it is scaled").factor);
    }
    let mut gradient = vec![f32::NAN; whole.about().gradient_len()];
    micro_batch(whole, step, MicroBatch(0), &batch, &mut gradient).expect("it fits");
    gradient
}

/// Of several blocks of the norm, so that each has a share.
fn model() -> Model<Cpu> {
    let options = CnnOptions { channels: vec![4, 8], hidden: vec![512], ..CnnOptions::default() };
    let (chain, input) =
        (cnn(&options, 10).expect("options that make sense"), Shape::values(ROWS, &[1, 8, 8]));
    let model = Model::new(&device(), chain, input, Loss::cross_entropy()).expect("it fits");
    assert!(model.layout().parameters > 5 * NORM_BLOCK);
    model
}

#[test]
fn shards_on_devices_come_to_the_state_of_one_that_has_all_whichever_way_the_parameters_travel() {
    for kept in [true, false] {
        let mut peers = Peers::new(4, model);
        for step in (1..=4).map(Step) {
            let gradient = gradient(&mut peers.whole, step, false);
            peers.step(step, &gradient, kept, &[]);
            peers.are_one();
        }
    }
}

#[test]
fn whoever_is_left_makes_the_update_that_another_one_made_and_takes_over_what_was_lost() {
    let mut peers = Peers::new(4, model);
    let first = gradient(&mut peers.whole, Step(1), false);
    peers.step(Step(1), &first, true, &[]);
    let second = gradient(&mut peers.whole, Step(2), false);
    // Two of them had no time to make it, and one is lost.
    peers.step(Step(2), &second, true, &[0, 2]);
    for at in [0, 2] {
        peers.held[at].settle().expect("finite");
        peers.held[at].update_held(None).expect("memory of the host");
    }
    peers.share_out(&[0, 2, 3], Step(2));
    peers.are_one();
    for step in (3..=4).map(Step) {
        let gradient = gradient(&mut peers.whole, step, false);
        peers.step(step, &gradient, true, &[]);
        peers.are_one();
    }
    let moment = |replica: &DeviceReplica<Cpu>| {
        replica.shards.as_ref().expect("it holds shards").sections[Section::First as usize].len()
    };
    let held: usize = peers.held.iter().map(moment).sum();
    assert_eq!(held, 2 * peers.whole.about().state.parameters);
}

#[test]
fn a_step_that_is_skipped_halves_the_scale_of_all_and_changes_nothing_else() {
    let scaled = || model().scaling_loss(LossScaling { start: 64.0, interval: 2 });
    let mut peers = Peers::new(3, scaled);
    let mut first = gradient(&mut peers.whole, Step(1), true);
    first[3] = f32::INFINITY;
    let before = peers.whole.bring_state().expect("memory of the host").section(Section::Parameters).to_vec();
    peers.step(Step(1), &first, true, &[]);
    assert_eq!(peers.held[1].bring_state().expect("memory of the host").section(Section::Parameters), before);
    assert_eq!(peers.held[1].loss_scale.map(|scale| scale.factor), Some(32.0));
    for step in (2..=3).map(Step) {
        let gradient = gradient(&mut peers.whole, step, true);
        peers.step(step, &gradient, true, &[]);
    }
    peers.are_one();
    peers.share_out(&[2, 0], Step(3));
    peers.are_one();
    assert_eq!(peers.held[0].loss_scale.map(|scale| scale.factor), Some(64.0));
}

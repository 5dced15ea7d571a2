//! A step in rounds, and a validation by parameters that are brought: passes whose windows travel to and from those who hold them.
//!
//! What a pass does is the engine's code, what travels and what comes of it that of `dtrain-rounds`, as in the runtime; here an exchange takes virtual
//! time, and faults meet it ([`Replay`]).

use super::Compute;
use super::doing::{Computed, Doing};
use super::replay::{Replay, Wanted};
use super::tools::Tools;
use super::watched::{Lent, Watched};
use super::windowed::{Pass, Validation, Windowed};
use super::words::{Ask, News, Work};
use crate::job::{VALIDATION, flatten, no_counts};
use crate::sabotage::Sabotage;
use dtrain_collective::{Arena, Op, Take};
use dtrain_engine::{BatchFigures, EvaluationCounts, MicroBatchGroup};
use dtrain_protocol::{Failure, ValidationPart};
use dtrain_rounds::{Computed as OfRound, Memory, Round, Rounds, RoundsError, RoundsPlan};
use dtrain_types::{MicroBatch, MicroRange, Step, StepPlan, Trailer, Wire, cut_evenly, roots};

/// What a pass came to.
enum Passed {
    Round(Option<Trailer>),
    Trailers(Trailer),
    Validation(Option<Trailer>, EvaluationCounts),
}

impl Compute {
    /// Prepares what ranks exchange in a step: in rounds, where nobody has all of a gradient.
    pub(super) fn prepare(&mut self, tools: &Tools<'_>) {
        let Some(holders) = self.holders() else { return };
        let (Some(plane), Some(shards)) = (&mut self.plane, &self.shards) else { return };
        let Some(windows) = &shards.windows else { return self.narrow(tools) };
        let parameters = tools.engine.state_shape().parameters;
        plane.rounds = Some(Rounds::new(&RoundsPlan {
            holders: &holders,
            cuts: &holders.cuts(parameters),
            rank: (plane.rank, plane.members.participants.len()),
            windows,
            lengths: (parameters, tools.engine.gradient_len()),
            slot: plane.machine.arena().geometry().len,
            micro_batches: tools.engine.job().plan.micro_batches(),
            wire: Wire::F32,
            level: shards.level,
        }));
        if self.sabotage == Some(Sabotage::OldRounds) {
            plane.rounds = plane.rounds.take().map(|new| self.relics.rounds.get_or_insert(new).clone());
        }
    }

    pub(super) fn is_in_rounds(&self) -> bool {
        self.plane.as_ref().is_some_and(|plane| plane.rounds.is_some())
    }

    /// Begins a step.
    pub(super) fn begin_rounds(&mut self, tools: &mut Tools<'_>, plan: StepPlan) {
        let (Some(plane), Some(shards)) = (&mut self.plane, &mut self.shards) else { return };
        let Some(rounds) = &mut plane.rounds else { return };
        rounds.begin(Memory::Home(shards.sharding().lend_sum(rounds.kept().elements())));
        let (number, trailers) = match self.relics.left.take() {
            Some((step, number, trailers)) if step == plan.step => (number, trailers),
            _ => (0, Vec::new()),
        };
        self.begin_pass(tools, Pass::Round { plan, number, trailers });
    }

    /// Tells all ranks what the micro-batches of this one came to, and hears what theirs did.
    pub(super) fn sum_trailers(&mut self, tools: &mut Tools<'_>) {
        self.begin_pass(tools, Pass::Trailers);
    }

    /// Begins this rank's share of a validation, where parameters are brought.
    pub(super) fn begin_validation(&mut self, tools: &mut Tools<'_>, step: Step) {
        let Some(plane) = &self.plane else { return };
        let ranges = cut_evenly(VALIDATION, plane.members.world().0);
        let most = ranges.iter().map(|range| range.len()).max().unwrap_or(0);
        let (range, counts) = (ranges[plane.rank.index()], no_counts());
        let validation = Validation { step, range, number: 0, most, trailers: Vec::new(), counts };
        self.begin_pass(tools, Pass::Validation(validation));
    }

    /// Begins a pass: it takes its time at first, if this rank has something to compute.
    fn begin_pass(&mut self, tools: &mut Tools<'_>, pass: Pass) {
        let work = match &pass {
            Pass::Validation(_) => Work::Evaluate,
            Pass::Round { .. } | Pass::Trailers => Work::MicroBatch,
        };
        let computes = self.computes_in(&pass);
        if !computes && self.sabotage == Some(Sabotage::IdleRank) {
            match pass {
                Pass::Round { .. } => return self.passed(tools, pass, Passed::Round(None)),
                Pass::Validation(of) => {
                    let counts = of.counts.clone();
                    return self.passed(tools, Pass::Validation(of), Passed::Validation(None, counts));
                }
                Pass::Trailers => {}
            }
        }
        let mut windowed = Windowed::new(pass);
        if matches!(windowed.pass, Pass::Round { .. }) {
            windowed.heard.extend(self.relics.window.clone());
        }
        self.doing = Doing::Pass(windowed);
        if computes { self.work(tools, work) } else { self.advance(tools) }
    }

    /// Whether this rank computes in the pass, or takes part for others alone.
    pub(super) fn computes_in(&self, pass: &Pass) -> bool {
        let rounds = self.plane.as_ref().and_then(|plane| plane.rounds.as_ref());
        match pass {
            Pass::Round { plan, number, .. } => {
                rounds.is_some_and(|rounds| rounds.micro_batch(*number) < plan.micro_batches)
            }
            Pass::Trailers => false,
            Pass::Validation(of) => of.number < of.range.len(),
        }
    }

    /// Takes the pass as far as it comes: to its end, or to an exchange that is still to be made.
    pub(super) fn advance(&mut self, tools: &mut Tools<'_>) {
        let Doing::Pass(windowed) = std::mem::replace(&mut self.doing, Doing::Rest) else { return };
        let Some(plane) = &mut self.plane else { return };
        let (generation, before) = (plane.generation, plane.rounds.clone());
        let mut replay = Replay::new(&windowed.heard, plane.machine.arena().geometry().len);
        let (passed, lent) = self.attempt(tools, &windowed.pass, &mut replay);
        let wanted = replay.wanted();
        match passed {
            Ok(passed) => {
                tools.asks.push(Ask::Lent { step: windowed.pass.reads(), lent });
                self.passed(tools, windowed.pass, passed);
            }
            Err(RoundsError::Exchange(_)) => {
                self.plane.iter_mut().for_each(|plane| plane.rounds.clone_from(&before));
                self.exchange(tools, windowed, wanted.expect("an exchange breaks off that has not come"));
            }
            Err(RoundsError::Engine(error)) => {
                tools.tell(News::Failed(generation, Failure::Engine(error.to_string())));
            }
        }
    }

    /// Tries a pass; tells what it came to, and what it was lent.
    fn attempt(
        &mut self,
        tools: &mut Tools<'_>,
        pass: &Pass,
        by: &mut Replay<'_>,
    ) -> (Result<Passed, RoundsError>, Vec<Lent>) {
        let (plane, shards) = (self.plane.as_mut().expect(BUILT), self.shards.as_mut().expect(BUILT));
        let rounds = plane.rounds.as_mut().expect(BUILT);
        let mut watched = Watched::new(&mut shards.replica);
        let passed = match pass {
            Pass::Round { plan, number, .. } => {
                let round = Round { number: *number, micro_batches: plan.micro_batches };
                let mut m = rounds.micro_batch(*number);
                if self.sabotage == Some(Sabotage::OtherMicroBatch) && m < plan.micro_batches {
                    let (first, of) = (m - plane.rank.0, plane.members.participants.len() as u32);
                    m = first + (plane.rank.0 + 1) % of.min(plan.micro_batches - first);
                }
                if m < plan.micro_batches {
                    let (m, stop) = (MicroBatch(m), self.stop.0);
                    let (batch, check) = tools.engine.batch(plan, m);
                    let group = &MicroBatchGroup::of_one(plan.step, m);
                    let figures = rounds.compute(&mut watched, OfRound { group, batch: &batch }, round, by);
                    figures.map(|figures| Passed::Round(Some(Trailer { stop, ..figures.trailer(m, check) })))
                } else {
                    rounds.take_part(&mut watched, round, by).map(|()| Passed::Round(None))
                }
            }
            Pass::Trailers => {
                let Computed { plan, trailers, .. } = self.computed.as_ref().expect("a step is in hand");
                rounds.sum_trailers(trailers, plan.micro_batches, by).map(Passed::Trailers)
            }
            Pass::Validation(of) => {
                let mut counts = of.counts.clone();
                let m = MicroBatch(of.range.lo + of.number);
                let batch = (m.0 < of.range.hi).then(|| tools.engine.validation_batch(m));
                let sums = rounds.evaluate(&mut watched, batch.as_ref(), &mut counts, by);
                let samples = batch.map(|batch| batch.rows as u64);
                let trailer = |sums| samples.map(|samples| BatchFigures { sums, samples }.trailer(m, 0));
                sums.map(|sums| Passed::Validation(trailer(sums), counts))
            }
        };
        (passed, watched.lent())
    }

    /// Makes an exchange that a pass asks for.
    fn exchange(&mut self, tools: &mut Tools<'_>, mut windowed: Box<Windowed>, wanted: Wanted) {
        let Some(plane) = &mut self.plane else { return };
        let Wanted { cuts, take, narrow, slot } = wanted;
        plane.machine.arena().lease(0).copy_from_slice(&slot);
        if self.sabotage != Some(Sabotage::OldNeeds) || windowed.heard.is_empty() {
            plane.machine.narrow(narrow);
        }
        plane.sequence += 1;
        plane.gathering = false;
        windowed.takes = Some(take);
        self.doing = Doing::Pass(windowed);
        self.start(tools, &Op::AllGather { cuts: Some(&cuts), take });
    }

    /// An exchange of a pass was made: it goes on.
    pub(super) fn exchanged(&mut self, tools: &mut Tools<'_>) {
        let (Doing::Pass(windowed), Some(plane)) = (&mut self.doing, &mut self.plane) else { return };
        let slot = plane.machine.arena().lease(0).to_vec();
        if self.sabotage == Some(Sabotage::OldWindow) && windowed.takes == Some(Take::Rest) {
            self.relics.window.get_or_insert(slot.clone());
        }
        windowed.heard.push(slot);
        windowed.takes = None;
        self.work(tools, Work::Add);
    }

    /// A pass is over.
    fn passed(&mut self, tools: &mut Tools<'_>, pass: Pass, passed: Passed) {
        match (pass, passed) {
            (Pass::Round { plan, number, mut trailers }, Passed::Round(trailer)) => {
                trailers.extend(trailer);
                let Some(rounds) = self.plane.as_ref().and_then(|plane| plane.rounds.as_ref()) else {
                    return;
                };
                if self.sabotage == Some(Sabotage::HalfStep) {
                    self.relics.left = Some((plan.step, number + 1, trailers.clone()));
                }
                if number + 1 < rounds.count(plan.micro_batches) {
                    return self.begin_pass(tools, Pass::Round { plan, number: number + 1, trailers });
                }
                self.busy = tools.now.since(self.begun).as_secs_f64();
                self.computed = Some(Computed { plan, trailers, trailer: Trailer::EMPTY, sum: Vec::new() });
            }
            (Pass::Trailers, Passed::Trailers(trailer)) => self.reduced(trailer),
            (Pass::Validation(mut of), Passed::Validation(trailer, counts)) => {
                of.trailers.extend(trailer);
                (of.number, of.counts) = (of.number + 1, counts);
                if of.number < of.most {
                    return self.begin_pass(tools, Pass::Validation(of));
                }
                self.validated(tools, &of);
            }
            (pass, _) => unreachable!("{pass:?} came to something else"),
        }
    }

    /// This rank's share of a validation is done.
    fn validated(&self, tools: &mut Tools<'_>, of: &Validation) {
        let Some(plane) = &self.plane else { return };
        let mut trailers = of.trailers.iter();
        let sum = |root: MicroRange| {
            let of_root = trailers.by_ref().take(root.len() as usize).copied();
            (root, dtrain_rounds::in_tree_order(of_root))
        };
        let parts = roots(of.range, VALIDATION).into_iter().map(sum).collect();
        let part = ValidationPart { step: of.step, parts, counts: flatten(&of.counts) };
        tools.tell(News::Validation(plane.generation, part));
    }
}

/// Why there are rounds: a pass over windows is begun only where they are.
const BUILT: &str = "a pass over windows has a generation, and rounds in it";

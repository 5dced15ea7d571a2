//! The ranks' processes: a member and its compute thread, with the queues between them.

use super::event::Event;
use super::{Process, World};
use crate::clock::{MICRO, MILLI};
use crate::compute::{Ask, At, News, Tools, Work};
use crate::fact::{Fact, LeftState, Life, View};
use crate::queue::Class;
use crate::sabotage::Sabotage;
use crate::situation::Situation;
use dtrain_protocol::{
    BOOTSTRAP_BYTES, Bootstrap, Exit, ExitCause, Failure, Input, Left, MemberEffect, ShardOutcome,
    ShardReport, Signals, Stage,
};
use dtrain_types::{Generation, Instant, MemberId, Rank, Step};

impl World {
    pub(super) fn process(&self, member: MemberId) -> Option<&Process> {
        self.processes.get(member.0 as usize)?.as_deref()
    }

    /// The life that an event is for, and whether only its compute thread takes it.
    fn receiver(&self, event: &Event) -> Option<(Life, bool)> {
        Some(match event {
            // Words find their way by the member: whichever life is there gets them.
            Event::Directive(d) => (self.process(d.member)?.life, false),
            Event::BeatDown(beat) => (self.process(beat.member)?.life, false),
            Event::MemberTimer(life) | Event::News(life, _) => (*life, false),
            Event::ShardWritten(life, _) | Event::ShardSynced(life, _) => (*life, false),
            Event::Worked(life, _) | Event::PeerLost(life, ..) | Event::HostMet(life) => (*life, true),
            Event::Frame { to, .. } => (*to, true),
            _ => return None,
        })
    }

    /// Something reaches a rank's process.
    pub(super) fn at_rank(&mut self, class: Class, event: Event) {
        let Some((life, computes)) = self.receiver(&event) else { return };
        let now = self.now;
        let Some(process) = self.process_mut(life) else { return };
        if now < process.sleep.until {
            return process.sleep.waiting.push((class, event));
        }
        if computes && now < process.hang.until {
            return process.hang.waiting.push((class, event));
        }
        self.with_process(life, |world, process, now, effects| world.take_in(process, now, event, effects));
    }

    fn take_in(&mut self, p: &mut Process, now: Instant, event: Event, effects: &mut Vec<MemberEffect>) {
        let member = u64::from(p.life.member.0);
        match event {
            Event::Directive(directive) => {
                self.mark(50, &[member, directive.number.0]);
                let mut directive = directive;
                if self.breaks(Sabotage::FalseAcknowledgement) {
                    directive.acknowledged = Step(u64::MAX);
                }
                p.member.handle_directive(now, &directive, effects);
                // A word of a supervisor of the past is no sign of life.
                if (directive.incarnation, Some(directive.instance)) == (p.life.incarnation, p.member.obeys())
                {
                    p.heard = self.now;
                }
                self.fact(&Fact::Saw(View::Member(p.life, p.member.obeys()), p.member.seen()));
            }
            Event::BeatDown(beat) => {
                if (beat.incarnation, Some(beat.instance)) == (p.life.incarnation, p.member.obeys()) {
                    p.heard = self.now;
                }
                p.member.handle_heartbeat(now, &beat);
            }
            Event::MemberTimer(_) if p.armed.is_some_and(|at| at <= self.now) => {
                p.armed = None;
                if p.member.next_deadline().is_some_and(|due| now >= due) {
                    self.mark(51, &[member]);
                    p.member.handle_timeout(now, effects);
                }
            }
            Event::MemberTimer(_) => {}
            Event::News(_, news) => self.hear(p, now, news, effects),
            Event::Worked(_, ticket) => {
                self.mark(52, &[member, ticket]);
                self.compute(p, now, |compute, tools| compute.worked(tools, ticket));
            }
            Event::HostMet(_) => {
                self.mark(56, &[member]);
                self.compute(p, now, |compute, tools| compute.host_met(tools));
            }
            Event::Frame { mut parcel, .. } => {
                if self.breaks(Sabotage::UnfencedFrames) {
                    parcel.header.tag.generation = parcel.header.tag.generation.max(p.generation);
                }
                self.mark(53, &[member, parcel.header.tag.sequence.0, parcel.from.0.into()]);
                self.compute(p, now, |compute, tools| compute.arrived(tools, *parcel));
            }
            Event::PeerLost(_, generation, peer) => {
                self.mark(54, &[member, peer.0.into()]);
                self.compute(p, now, |compute, tools| compute.peer_lost(tools, generation, peer));
            }
            Event::ShardWritten(life, job) => {
                if self.breaks(Sabotage::EarlyDurable)
                    && let Ok(file) = self.disk.write_unsynced(job.id, job.rank, p.host, job.floats.clone())
                {
                    let (digest, state_digest) = (job.digest, job.state_digest);
                    let outcome = ShardOutcome::Durable { file, digest, state_digest };
                    let shard = ShardReport { id: job.id, rank: job.rank, outcome };
                    return self.saved(p, now, shard, effects);
                }
                let written = self.disk.write(job.id, job.rank, p.host, job.floats.clone());
                match written {
                    Ok(()) => {
                        self.signal(p, now, |signals| signals.lent = false);
                        let after = self.chance.between(MILLI, 15 * MILLI) * self.disk_slow;
                        self.push(after, Event::ShardSynced(life, job));
                    }
                    Err(error) => {
                        let outcome = ShardOutcome::Failed { reason: error.to_string() };
                        self.saved(p, now, ShardReport { id: job.id, rank: job.rank, outcome }, effects);
                    }
                }
            }
            Event::ShardSynced(_, job) => {
                let outcome = match self.disk.sync(job.id, job.rank) {
                    Ok(file) => {
                        ShardOutcome::Durable { file, digest: job.digest, state_digest: job.state_digest }
                    }
                    Err(error) => ShardOutcome::Failed { reason: error.to_string() },
                };
                self.saved(p, now, ShardReport { id: job.id, rank: job.rank, outcome }, effects);
            }
            _ => unreachable!("it is for somebody else"),
        }
    }

    fn saved(&mut self, p: &mut Process, now: Instant, shard: ShardReport, effects: &mut Vec<MemberEffect>) {
        p.member.handle_shard(now, shard, effects);
        self.signal(p, now, |signals| (signals.writing, signals.lent) = (false, false));
    }

    /// A member hears its compute thread.
    fn hear(&mut self, p: &mut Process, now: Instant, news: News, effects: &mut Vec<MemberEffect>) {
        self.mark(55, &[p.life.member.0.into()]);
        match news {
            News::Built(generation) => p.member.handle_built(generation, effects),
            News::CaughtUp(generation, applied) => p.member.handle_caught_up(generation, applied),
            News::Loaded(loaded) => p.member.handle_loaded(now, loaded, effects),
            News::Left { generation, applied } => {
                let life = p.life;
                let state = match p.compute.applied() {
                    None => LeftState::None,
                    // It is whole when it is adopted again, or when others' parts have come.
                    Some(step) if p.compute.shares() || p.compute.shards().is_some() => {
                        LeftState::Shared(step)
                    }
                    Some(step) => LeftState::Own(step, p.compute.state_digest().expect("a state")),
                };
                self.fact(&Fact::Left { life, generation, state });
                let first = p.first_in == Some(generation);
                let bootstrap = first.then(|| bootstrap_of(life, generation));
                if let Some(bootstrap) = &bootstrap {
                    self.fact(&Fact::Made(life, generation, bootstrap));
                }
                p.member.handle_left(now, Left { generation, applied, bootstrap }, effects);
            }
            News::Step(record) => p.member.handle_step(now, record, effects),
            News::Validation(generation, part) => {
                p.member.handle_validation(now, generation, part, effects);
            }
            News::Verified(generation, step, digest) => {
                p.member.handle_verified(now, generation, step, digest, effects);
            }
            News::Finished(generation, finished) => {
                p.member.handle_finished(now, generation, finished, effects);
            }
            News::Broken { generation, why, unreachable } => {
                self.tell(|| format!("{}: {why} in generation {generation}", p.life));
                p.member.handle_broken(now, generation, &why, unreachable, effects);
            }
            News::Failed(generation, failure) => {
                p.member.handle_failure(now, generation, failure, effects);
            }
        }
    }

    /// Lends a process out, runs what its member asks for, and looks at it afterwards.
    pub(super) fn with_process(
        &mut self,
        life: Life,
        what: impl FnOnce(&mut Self, &mut Process, Instant, &mut Vec<MemberEffect>),
    ) {
        let place = life.member.0 as usize;
        let Some(mut process) = self.processes[place].take_if(|process| process.life == life) else { return };
        let now = process.clock.show(self.now);
        let mut effects = std::mem::take(&mut self.member_effects);
        process.member.handle_activity(process.compute.activity());
        what(self, &mut process, now, &mut effects);
        self.obey_member(&mut process, now, &mut effects);
        effects.clear();
        self.member_effects = effects;
        self.look_at(&mut process);
        let exits = process.exits;
        self.processes[place] = Some(process);
        if let Some(code) = exits {
            self.end_process(life, ExitCause::Code(code));
        }
    }

    fn look_at(&mut self, process: &mut Process) {
        let life = process.life;
        if process.member.generation() != process.generation {
            process.generation = process.member.generation();
            self.fact(&Fact::Entered(life, process.generation));
        }
        let (records, limit) = (process.member.unacknowledged(), self.limits.unacknowledged);
        let parked = process.compute.parked();
        self.fact(&Fact::Holds { life, records, limit, parked });
        if let Some(due) = process.member.next_deadline() {
            let at = process.clock.when(due).max(self.now + 1);
            if process.armed.is_none_or(|armed| at < armed) {
                process.armed = Some(at);
                self.queue.push(at, Class::Timer, Event::MemberTimer(life));
            }
        }
        let place = place_of(process);
        if place != process.place {
            process.place = place;
            self.entered(place, Some(life));
        }
    }

    fn obey_member(&mut self, p: &mut Process, now: Instant, effects: &mut Vec<MemberEffect>) {
        for effect in effects.drain(..) {
            match effect {
                MemberEffect::Send(report) => self.send_up(p.host, Event::Told(Input::Report(report))),
                MemberEffect::Beat(beat) => self.send_up(p.host, Event::Told(Input::Heartbeat(beat))),
                MemberEffect::Build { generation, rank, membership, bootstrap } => {
                    self.fact(&Fact::Named(generation, &membership));
                    let participant = &membership.participants[0];
                    let first = Life { member: participant.member, incarnation: participant.incarnation };
                    let by = bootstrap.as_ref();
                    self.fact(&Fact::Meets { life: p.life, generation, first, by });
                    self.compute(p, now, |compute, tools| compute.build(tools, generation, rank, membership));
                }
                MemberEffect::Quit { generation, rank } => {
                    p.first_in = (rank == Rank(0)).then_some(generation);
                    self.compute(p, now, |compute, tools| compute.quit(tools, generation));
                }
                MemberEffect::Load { resume_point, .. } => {
                    self.compute(p, now, |compute, tools| compute.load(tools, &resume_point));
                }
                MemberEffect::Run { from_step, pending, .. } => {
                    self.compute(p, now, |compute, tools| compute.run(tools, from_step, pending));
                }
                MemberEffect::AskStop(_) if self.breaks(Sabotage::ForgottenStop) => {}
                MemberEffect::AskStop(flag) => p.compute.ask_stop(flag),
                MemberEffect::Validated(step, enough) => self.signal(p, now, |signals| {
                    signals.validated = step;
                    signals.enough = enough;
                }),
                MemberEffect::Pause => self.signal(p, now, |signals| signals.paused = true),
                MemberEffect::Resume => self.signal(p, now, |signals| signals.paused = false),
                MemberEffect::Settled(id) => self.signal(p, now, |signals| signals.settled = id),
                MemberEffect::Abort => {}
                MemberEffect::Exit(exit) => {
                    p.exits = Some(Exit::code(exit));
                    if matches!(p.member.stage(), Stage::Failed(Failure::SupervisorLost { .. })) {
                        self.gave_up(&p.life.to_string(), p.heard);
                    }
                }
            }
        }
    }

    /// Tells a compute thread what one of its tasks may wait for.
    fn signal(&mut self, p: &mut Process, now: Instant, change: impl FnOnce(&mut Signals)) {
        self.compute(p, now, |compute, tools| compute.signal(tools, change));
    }

    /// Does something to a compute thread, and what it asks for.
    pub(super) fn compute(
        &mut self,
        p: &mut Process,
        now: Instant,
        what: impl FnOnce(&mut crate::compute::Compute, &mut Tools<'_>),
    ) {
        let mut asks = std::mem::take(&mut self.asks);
        let memory = self.hosts[p.host.0 as usize].memory.as_mut();
        let mut tools = Tools { engine: &mut self.engine, disk: &self.disk, memory, now, asks: &mut asks };
        what(&mut p.compute, &mut tools);
        for ask in asks.drain(..) {
            self.answer(p, ask);
        }
        self.asks = asks;
    }

    fn answer(&mut self, p: &mut Process, ask: Ask) {
        let life = p.life;
        match ask {
            Ask::Tell(news @ News::Built(_)) => {
                // The sync actor builds, and says so itself: no queue orders this and what the compute thread says.
                let late = if self.chance.per_mille(50) { 30 * MILLI } else { 30 * MICRO };
                let after = self.chance.between(MICRO, late);
                self.push(after, Event::News(life, news));
            }
            Ask::Tell(news) => {
                // A queue between two threads: it keeps its order.
                let after = self.chance.between(MICRO, 30 * MICRO);
                p.news_at = (self.now + after).max(p.news_at + 1);
                if self.breaks(Sabotage::ShuffledNews) {
                    p.news_at = self.now + after;
                }
                self.queue.push(p.news_at, Class::Input, Event::News(life, news));
            }
            Ask::Send { to, from, header, payload } => self.transmit(p, to, from, header, payload),
            Ask::Work(ticket, work) => {
                let takes = self.length_of(work) * p.slow / 1_000;
                self.push(takes, Event::Worked(life, ticket));
            }
            Ask::WakeHost => {
                let others = self.processes.iter().flatten().filter(|other| other.life != life);
                let peers: Vec<Life> =
                    others.filter(|other| other.host == p.host).map(|other| other.life).collect();
                for peer in peers.into_iter().chain([life]) {
                    let after = self.chance.between(MICRO / 10, 30 * MICRO);
                    self.push(after, Event::HostMet(peer));
                }
            }
            Ask::Save(job) => {
                let after = self.chance.between(MILLI, 10 * MILLI) * self.disk_slow;
                self.push(after, Event::ShardWritten(life, Box::new(job)));
            }
            Ask::Updated { generation, step, gradient, needed, state_digest } => {
                self.mark(60, &[life.member.0.into(), step.0, u64::from(state_digest.0[0])]);
                let (member_in, gradient, needed) = (p.member.generation(), &gradient[..], needed.as_deref());
                self.fact(&Fact::Updated {
                    life,
                    generation,
                    member_in,
                    step,
                    gradient,
                    needed,
                    state_digest,
                });
            }
            Ask::Swapped { generation, step, state_digest, copied } => {
                self.mark(61, &[life.member.0.into(), step.0]);
                self.fact(&Fact::Swapped { life, generation, step, state_digest, copied });
            }
            Ask::Held { generation, step, holding, held } => {
                self.mark(62, &[life.member.0.into(), step.0]);
                let (holding, held) = (&holding, &held[..]);
                self.fact(&Fact::Held { life, generation, step, holding, held });
            }
            Ask::Lent { step, lent } => self.fact(&Fact::Lent { life, step, lent: &lent }),
            Ask::Foreign(error) => self.fact(&Fact::Foreign(life, &error.to_string())),
        }
    }

    fn length_of(&mut self, work: Work) -> u64 {
        let (least, most) = match work {
            Work::MicroBatch => (2_000, 3_500),
            Work::Backward => (300, 900),
            Work::Update => (100, 400),
            Work::Add => (20, 200),
            Work::Evaluate => (2_000, 4_000),
            Work::Load => (1_000, 8_000),
            Work::Window => (100, 1_000),
        };
        self.chance.between(least * MICRO, most * MICRO)
    }
}

/// What a life makes as rank 0 of a generation: no other makes the same, nor it in another generation.
fn bootstrap_of(life: Life, generation: Generation) -> Bootstrap {
    let mut bytes = [0; BOOTSTRAP_BYTES];
    bytes[..8].copy_from_slice(&generation.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&life.member.0.to_le_bytes());
    bytes[12..16].copy_from_slice(&life.incarnation.0.to_le_bytes());
    Bootstrap(bytes)
}

/// Where a rank stands.
pub(super) fn place_of(process: &Process) -> Situation {
    match (process.member.stage(), process.compute.at()) {
        (Stage::Joining, _) => Situation::Start,
        (Stage::Broken { .. }, _) => Situation::Broken,
        (Stage::Finished(_) | Stage::Failed(_) | Stage::Leaving, _) => Situation::Finished,
        (_, At::Build) => Situation::Build,
        (_, At::Load) => Situation::Load,
        (_, At::CopySource) => Situation::CopySource,
        (_, At::CopyTarget) => Situation::CopyTarget,
        (_, At::ShareOut) => Situation::ShareOut,
        (_, At::Gather) => Situation::Gather,
        (_, At::Compute) => Situation::Compute,
        (_, At::Offer) => Situation::Offer,
        (_, At::Round1) => Situation::Round1,
        (_, At::Round2) => Situation::Round2,
        (_, At::Update) => Situation::Update,
        (_, At::UpdateShare) => Situation::UpdateShare,
        (_, At::Meet) => Situation::Meet,
        (_, At::Complete) => Situation::Complete,
        (_, At::Validate) => Situation::Validate,
        (_, At::Save | At::GatherAll) => Situation::Save,
        (Stage::Formed, At::Rest) => Situation::Form,
        (Stage::Ready { .. }, At::Rest) => Situation::Ready,
        (Stage::Running, At::Rest) => Situation::Finished,
    }
}

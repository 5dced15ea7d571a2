//! The supervisor's process: what reaches it, and what it asks for.

use super::World;
use super::event::{Asleep, Entry, Event};
use super::network::Block;
use super::settings::DataPlane;
use crate::clock::{MICRO, MILLI, SECOND};
use crate::fact::{Fact, Life, View};
use crate::queue::Class;
use crate::sabotage::Sabotage;
use crate::situation::Situation;
use crate::world::event::copy_of;
use dtrain_protocol::{
    CheckpointId, Input, Membership, NodeOrder, Outcome, Phase, StateSource, Supervisor, SupervisorEffect,
    What,
};
use dtrain_types::{Generation, Holding, Instant, NodeId, Step};

/// What it costs to handle one message. *Units*: nanoseconds.
const MESSAGE: u64 = 6 * MICRO;
/// A link over which nothing came for so long is dead. *Units*: nanoseconds.
const LINKS_DIE: u64 = 3 * SECOND;
/// A host whose link is dead has called again within so long after the supervisor can answer. *Units*: nanoseconds.
const CALLS_AGAIN: u64 = 2 * SECOND;
/// After so long everybody has heard a supervisor that goes on. *Units*: nanoseconds.
const HEARD: u64 = CALLS_AGAIN + SECOND;
/// Words of so many a rank find room beside a supervisor that does not read them.
const ROOM: usize = 100;

impl World {
    /// Something reaches the supervisor's process.
    pub(super) fn at_supervisor(&mut self, class: Class, event: Event) {
        if self.dead {
            return;
        }
        if self.now < self.supervisor_sleep.until {
            return self.wait_for_supervisor(class, event);
        }
        if class == Class::Input && self.now < self.busy_until {
            return self.queue.push(self.busy_until, class, event);
        }
        self.busy_until = self.now + MESSAGE;
        let now = self.clock.show(self.now);
        let mut effects = std::mem::take(&mut self.supervisor_effects);
        self.feed(now, event, &mut effects);
        self.obey_supervisor(&mut effects);
        self.supervisor_effects = effects;
        self.arm_supervisor();
    }

    fn feed(&mut self, now: Instant, event: Event, effects: &mut Vec<SupervisorEffect>) {
        match event {
            Event::Told(input) => {
                self.supervisor.feed(now, &input, effects);
                self.mark_input(&input);
            }
            Event::Written => self.write_down(now, effects),
            Event::ManifestWritten(order) => self.rename(order),
            Event::ManifestTold(order, result) => {
                self.renamed = Situation::Nobody;
                self.mark(6, &[order.id.step.0, u64::from(result.is_ok())]);
                self.supervisor.feed(now, &Input::Manifest(order.id, result), effects);
            }
            Event::SupervisorTimer if self.supervisor_armed == Some(self.now) => {
                self.supervisor_armed = None;
                if self.supervisor.next_deadline().is_some_and(|due| now >= due) {
                    self.mark(7, &[]);
                    self.supervisor.feed(now, &Input::Timeout, effects);
                }
            }
            // It was slept through, or is not the one that counts.
            Event::SupervisorTimer => {
                if self.supervisor_armed.is_some_and(|at| at < self.now) {
                    self.supervisor_armed = None;
                    self.supervisor.feed(now, &Input::Timeout, effects);
                }
            }
            _ => unreachable!("it is for somebody else"),
        }
    }

    /// Mixes what the supervisor was told into the trace, and looks at what it then holds of the sender.
    fn mark_input(&mut self, input: &Input) {
        match input {
            Input::Report(report) => {
                let (member, applied) = (report.member, report.applied.map_or(0, |step| step.0 + 1));
                self.mark(1, &[member.0.into(), report.number.0, applied]);
                if let Some((incarnation, number)) = self.supervisor.heard_of(member) {
                    self.answered.insert(Life { member, incarnation });
                    self.fact(&Fact::Saw(
                        View::OfMember(self.leads_by, Life { member, incarnation }),
                        number,
                    ));
                }
            }
            Input::Heartbeat(beat) => self.mark(2, &[beat.member.0.into(), beat.number.0]),
            Input::NodeReport(report) => {
                self.mark(3, &[report.node.0.into(), report.number.0]);
                // It is written down before the node is let in.
                self.let_in.insert(report.node);
                if let Some((boot, number)) = self.supervisor.heard_of_node(report.node) {
                    self.fact(&Fact::Saw(View::OfNode(self.leads_by, report.node, boot), number));
                }
            }
            Input::LinkLost(member) => self.mark(4, &[member.0.into()]),
            Input::NodeLost(node) => self.mark(5, &[node.0.into()]),
            _ => {}
        }
    }

    pub(super) fn arm_supervisor(&mut self) {
        let Some(due) = self.supervisor.next_deadline() else { return };
        let at = self.clock.when(due).max(self.now + 1);
        if self.supervisor_armed.is_none_or(|armed| at < armed) {
            self.supervisor_armed = Some(at);
            self.queue.push(at, Class::Timer, Event::SupervisorTimer);
        }
    }

    fn obey_supervisor(&mut self, effects: &mut Vec<SupervisorEffect>) {
        for effect in effects.drain(..) {
            match effect {
                SupervisorEffect::Send(directive) => {
                    self.mark(10, &[directive.member.0.into(), directive.number.0, directive.generation.0]);
                    if directive.phase == Phase::Sync && directive.generation > self.named_resume_point {
                        self.named_resume_point = directive.generation;
                        self.name_resume_point(
                            &directive.membership,
                            directive.resume_point.step,
                            &directive.resume_point.source,
                        );
                    }
                    let member = directive.member;
                    if directive.phase == Phase::Finish {
                        self.fact(&Fact::ToldOver(member));
                    }
                    self.send_down(member, Event::Directive(directive));
                }
                SupervisorEffect::Beat(beat) => self.send_down(beat.member, Event::BeatDown(beat)),
                SupervisorEffect::Order(order) => {
                    self.note_ends(&order);
                    let node = order.node;
                    self.send_to_host(node, Event::Order(order));
                }
                SupervisorEffect::WriteRanges(generation, _) => {
                    self.ranges_known.insert(generation);
                    if self.breaks(Sabotage::EarlyRanges) {
                        self.push(MICRO, Event::Told(Input::Ranges(generation)));
                    }
                    self.enter_journal(Entry::Ranges(generation));
                }
                SupervisorEffect::Commit(record) => {
                    self.mark(11, &[record.step.0, record.trailer.loss.to_bits()]);
                    if self.breaks(Sabotage::EarlyRecord) {
                        self.push(MICRO, Event::Told(Input::Recorded(record.step)));
                    }
                    self.enter_journal(Entry::Step(record));
                }
                SupervisorEffect::Validated(validation) => {
                    self.mark(12, &[validation.step.0, validation.trailer.loss.to_bits()]);
                    self.enter_journal(Entry::Validation(validation));
                }
                SupervisorEffect::WriteEnding(ending) => {
                    self.mark(14, &[ending.step.0]);
                    if self.breaks(Sabotage::EarlyEnding) {
                        self.push(MICRO, Event::Told(Input::Ending));
                    }
                    self.enter_journal(Entry::Ending(ending));
                }
                SupervisorEffect::WriteManifest(order) => {
                    self.mark(13, &[order.id.step.0]);
                    self.fact(&Fact::Ordered(&order));
                    self.renamed = Situation::BeforeRename;
                    self.entered(Situation::BeforeRename, None);
                    let after = self.chance.between(MILLI, 20 * MILLI) * self.disk_slow;
                    // Behind what was entered before.
                    let after = after.max(self.journal_at.saturating_sub(self.now) + 1);
                    self.push(after, Event::ManifestWritten(order));
                }
                SupervisorEffect::Reserve(upto) => {
                    self.reserved = self.reserved.max(upto);
                    let after = self.chance.between(100 * MICRO, 3 * MILLI);
                    self.push(after, Event::Told(Input::Reserved(upto)));
                }
                SupervisorEffect::Event(event) => self.supervisor_tells(event),
                SupervisorEffect::Finish(outcome) => self.end(*outcome),
            }
        }
    }

    /// Which of the lives that are there an order ends. At the end of a run all are to go.
    fn note_ends(&mut self, order: &NodeOrder) {
        if matches!(self.supervisor.phase(), Phase::Finish | Phase::Stop) {
            return;
        }
        for place in 0..self.processes.len() {
            let Some(process) = self.processes[place].as_deref() else { continue };
            let life = process.life;
            let meant = order.members.iter().find(|meant| meant.member == life.member);
            let stays = meant.is_some_and(|meant| meant.alive && meant.incarnation <= life.incarnation);
            if (process.host, process.boot) == (order.node, order.boot) && !stays {
                let heard = self.is_heard(life);
                self.fact(&Fact::Ends { life, heard });
            }
        }
    }

    /// The manifest is on the disk under another name: now it is renamed into place.
    fn rename(&mut self, order: Box<dtrain_protocol::ManifestOrder>) {
        let sound = self.disk.check(&order).map_err(|error| error.to_string());
        let result = match self.settings.sabotage {
            Some(Sabotage::PhantomManifest) => Ok(()),
            _ => self.disk.rename((*order).clone()).map_err(|error| error.to_string()),
        };
        if result.is_ok() {
            self.renamed = Situation::AfterRename;
            self.entered(Situation::AfterRename, None);
            self.fact(&Fact::Renamed(&order, sound.as_ref().copied().map_err(String::as_str)));
        }
        let after = self.chance.between(100 * MICRO, 10 * MILLI);
        let denied = self.breaks(Sabotage::DeniedManifest);
        let told = if denied { Err("denied".to_owned()) } else { result };
        self.push(after, Event::ManifestTold(order, told));
    }

    /// The resume point of a new generation is named: is it the newest state that any of its members holds?
    fn name_resume_point(&mut self, membership: &Membership, step: Step, source: &StateSource) {
        let generation = self.named_resume_point;
        let held = membership.participants.iter().filter_map(|participant| {
            let process = self.processes.get(participant.member.0 as usize)?.as_deref()?;
            (process.life.incarnation == participant.incarnation).then(|| process.compute.applied())?
        });
        let held = held.max().filter(|_| self.is_held_by(membership));
        let committed = self.supervisor.committed();
        let written = self.on_disk.recorded;
        self.fact(&Fact::ResumePoint { generation, step, committed, written, held });
        let on_disk: Vec<CheckpointId> = self.disk.manifests().collect();
        if let StateSource::Start(from) = source {
            // A manifest that is renamed and not told of may be missed: nobody was told that it counts.
            let told: Vec<CheckpointId> = match self.renamed {
                Situation::AfterRename => {
                    let newest = on_disk.iter().max().copied();
                    on_disk.iter().copied().filter(|id| Some(*id) != newest).collect()
                }
                _ => on_disk.clone(),
            };
            self.fact(&Fact::Resumed(*from, &told));
        }
        self.tell(|| format!("generation {generation} goes on with step {step} from {source:?}"));
    }

    /// Whether the members that live hold all of a state, where they hold shards.
    fn is_held_by(&self, membership: &Membership) -> bool {
        let holdings = membership.participants.iter().filter_map(|participant| {
            let process = self.processes.get(participant.member.0 as usize)?.as_deref()?;
            let is_this = process.life.incarnation == participant.incarnation;
            let shards = process.compute.shards().filter(|shards| is_this && shards.applied().is_some());
            shards.map(|shards| shards.holding())
        });
        !matches!(self.settings.plane, DataPlane::Shards(_)) || Holding::cover(holdings)
    }

    fn supervisor_tells(&mut self, event: dtrain_protocol::Event) {
        use dtrain_protocol::Event as Told;
        match &event {
            Told::Formed { generation, membership } => {
                self.mark(20, &[generation.0, membership.participants.len() as u64]);
                let heard: Vec<Life> =
                    self.living().into_iter().filter(|life| self.is_heard(*life)).collect();
                self.fact(&Fact::CanBeHeard(&heard));
                self.fact(&Fact::Named(*generation, membership));
                self.asked = None;
                let caused = std::mem::take(&mut self.caused);
                self.fact(&Fact::Formed(*generation, caused));
                let members: Vec<String> = membership
                    .participants
                    .iter()
                    .map(|s| format!("{}.{}", s.member, s.incarnation))
                    .collect();
                let less = match membership.unmirrored {
                    0 => String::new(),
                    1 => ", each shard with 1 holder less".to_owned(),
                    some => format!(", each shard with {some} holders less"),
                };
                let members = members.join(" ");
                self.tell(|| format!("supervisor: forms generation {generation} of {members}{less}"));
            }
            Told::Fault(cause) => {
                self.mark(21, &[cause.member.0.into()]);
                let guessed = match &cause.what {
                    What::NoProgress { suspects, .. } => self.one_hangs_of(suspects),
                    What::HoldsPart => !self.is_held_by(self.supervisor.membership()),
                    _ => false,
                };
                // No fault of a cluster makes anybody say what cannot be.
                let possible = !matches!(cause.what, What::Impossible(_));
                let excused = possible && self.is_excused(cause.member) || guessed;
                self.caused = true;
                self.losses += 1;
                if cause.phase == Phase::Run {
                    self.excuses.losses += 1;
                }
                let text = cause.to_string();
                self.fact(&Fact::Lost(cause.member, excused, &text));
                self.tell(|| format!("supervisor: {text}"));
                self.trigger_after_loss();
                self.entered(Situation::Recovery, None);
            }
            Told::Reforming { reason } => {
                self.caused = true;
                self.asked = Some(self.supervisor.committed()).filter(|_| self.network.is_sound());
                self.entered(Situation::Admission, None);
                self.tell(|| format!("supervisor: reforms for {reason:?}"));
            }
            Told::CheckpointWritten { id } => {
                let on_disk: Vec<CheckpointId> = self.disk.manifests().collect();
                self.fact(&Fact::Complete(Some(*id), &on_disk));
                self.tell(|| format!("supervisor: checkpoint {id} is written"));
            }
            Told::Running { generation, from_step } => {
                let unmirrored = self.supervisor.membership().unmirrored;
                self.fact(&Fact::Begins(*generation, Step(from_step.0 - 1), unmirrored));
                self.tell(|| format!("supervisor: {event:?}"));
            }
            Told::CheckpointGivenUp { id, .. } => {
                self.fact(&Fact::GivenUp(*id));
                self.tell(|| format!("supervisor: {event:?}"));
            }
            Told::Joined { .. } | Told::RankStarted { .. } => {}
            other => self.tell(|| format!("supervisor: {other:?}")),
        }
    }

    pub(super) fn end(&mut self, outcome: Outcome) {
        // The process ends once everything is written.
        while let Some(entry) = self.journal.pop_front() {
            self.note_written(&entry);
        }
        self.mark(30, &[self.supervisor.committed().0]);
        let complete = match &outcome {
            Outcome::Finished(end) | Outcome::Interrupted(Some(end)) => end.checkpoint,
            _ => None,
        };
        let on_disk: Vec<CheckpointId> = self.disk.manifests().collect();
        self.fact(&Fact::Complete(complete, &on_disk));
        self.fact(&Fact::Ended(&outcome, self.excuses));
        self.tell(|| format!("supervisor: the run ended: {outcome:?}"));
        self.outcome = Some(outcome);
    }

    /// Sends something to a member, by way of its host.
    pub(super) fn send_down(&mut self, member: dtrain_types::MemberId, event: Event) {
        let Some(host) = self.process(member).map(|process| process.host) else { return };
        self.send_to_host(host, event);
    }

    pub(super) fn send_to_host(&mut self, host: NodeId, event: Event) {
        if !self.network.is_open_down(host) || self.is_lost() {
            return;
        }
        if self.is_doubled()
            && let Some(copy) = copy_of(&event)
        {
            let after = self.control_delay(host);
            self.push(after, copy);
        }
        let after = self.control_delay(host);
        self.push(after, event);
    }

    /// The supervisor stands still for a while. Nobody is lost by it who waits for longer: that excuses nothing.
    pub(super) fn stop_supervisor(&mut self, at: usize, length: u64) {
        if self.dead {
            return;
        }
        let until = (self.now + length).max(self.supervisor_sleep.until);
        // Whoever was not heard between two stops has stood still all the time.
        if self.now > self.supervisor_sleep.until + HEARD {
            self.stood_since = self.now;
        }
        self.supervisor_sleep.until = until;
        self.stood += length;
        if until + HEARD >= self.stood_since + self.times.master.as_nanos() as u64 {
            self.touched_all = self.touched_all.max(until);
        }
        self.push(length, Event::Wake(Asleep::Supervisor));
        if length > LINKS_DIE {
            self.push(LINKS_DIE, Event::LinksDie(at));
            // Its own clock says on waking that the links are dead, and hosts call as soon as they may.
            let most = if self.breaks(Sabotage::LateCall) { 6 * CALLS_AGAIN } else { CALLS_AGAIN };
            let call = self.chance.below(most);
            self.push(length + call, Event::Heal(at));
        }
    }

    /// Hosts hold their links to a supervisor that stands still to be dead.
    pub(super) fn links_die(&mut self, at: usize) {
        for host in (1..self.settings.nodes).map(NodeId) {
            self.network.blocks.push((at, Block::Words(host)));
            self.push(0, Event::Told(Input::NodeLost(host)));
        }
    }

    /// What arrives while the supervisor stands still lies in sockets and queues. They have room for so much: words that come then
    /// are lost.
    fn wait_for_supervisor(&mut self, class: Class, event: Event) {
        let word =
            matches!(event, Event::Told(Input::Report(_) | Input::Heartbeat(_) | Input::NodeReport(_)));
        let room = ROOM * self.settings.ranks as usize;
        if !word || self.supervisor_sleep.waiting.len() < room {
            self.supervisor_sleep.waiting.push((class, event));
        }
    }

    /// The supervisor's own view, for the places that are not a rank's.
    pub(super) fn world_places(&self, supervisor: &Supervisor) -> Vec<Situation> {
        let mut places = Vec::new();
        if self.renamed != Situation::Nobody {
            places.push(self.renamed);
        }
        let again = supervisor.generation() > Generation(1) || self.losses > 0;
        if again && matches!(supervisor.phase(), Phase::Join | Phase::Form | Phase::Sync) {
            places.push(Situation::Recovery);
        }
        if self.caused && supervisor.phase() == Phase::Run {
            places.push(Situation::Admission);
        }
        places
    }
}

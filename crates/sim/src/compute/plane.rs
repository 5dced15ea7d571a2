//! The data plane: frames in and out of the collective that is under way, and its end.

use super::doing::Doing;
use super::tools::Tools;
use super::words::{Ask, News};
use super::{Compute, Plane};
use dtrain_collective::{Frame, Op, Sequence, Verdict};
use dtrain_types::Trailer;

impl Compute {
    /// Meets all peers of a new generation.
    pub(super) fn enter(&mut self, tools: &mut Tools<'_>) {
        if self.is_on_host() {
            return self.host_enter(tools);
        }
        self.start(tools, &Op::Barrier);
    }

    /// Begins the next collective of the data plane.
    pub(super) fn start(&mut self, tools: &mut Tools<'_>, op: &Op<'_>) {
        if self.is_on_host() {
            return self.host_give(tools, op);
        }
        let Some(plane) = &mut self.plane else { return };
        plane.machine.start(Sequence(plane.sequence), op);
        self.began(tools);
    }

    /// Whether a collective of frames waits for its end.
    fn exchanges(&self) -> bool {
        let collective = matches!(
            self.doing,
            Doing::Reach
                | Doing::Copy(_)
                | Doing::Share(_)
                | Doing::Reduce
                | Doing::Open
                | Doing::Meet
                | Doing::Agree
                | Doing::Gather
                | Doing::GatherAll(_)
        ) || matches!(&self.doing, Doing::Pass(windowed) if windowed.takes.is_some());
        let turn = |plane: &Plane| plane.host.as_ref().is_none_or(|participant| participant.exchanges());
        collective && !self.working && self.plane.as_ref().is_some_and(turn)
    }

    /// A collective has begun: what is there for it already is used.
    pub(super) fn began(&mut self, tools: &mut Tools<'_>) {
        self.break_off_if_lost(tools);
        self.pump(tools);
    }

    pub(super) fn break_off_if_lost(&mut self, tools: &mut Tools<'_>) {
        if self.exchanges() && self.plane.as_ref().is_some_and(|plane| !plane.lost.is_empty()) {
            self.break_off(tools, "a connection broke".to_owned());
        }
    }

    pub(super) fn break_off(&mut self, tools: &mut Tools<'_>, why: String) {
        self.keep_sum(tools);
        let Some(plane) = self.plane.take() else { return };
        self.doing = Doing::Rest;
        self.agenda.stop();
        if let Some(memory) =
            tools.memory.as_deref_mut().filter(|memory| memory.meeting.generation == plane.generation)
        {
            // The peers of the host are waked, too.
            memory.meeting.broken = true;
            tools.asks.push(Ask::WakeHost);
        }
        let unreachable = plane.lost.into_iter().collect();
        tools.tell(News::Broken { generation: plane.generation, why, unreachable });
    }

    /// Uses every frame whose time has come, sends what can leave, and ends the collective when it is done.
    pub(super) fn pump(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let machine = &mut plane.machine;
        let (mut foreign, mut gathering, mut taken) = (None, plane.gathering, true);
        // A frame that is taken may make room for one that came before it.
        while std::mem::take(&mut taken) {
            self.parked.retain(|parcel| {
                let frame = Frame { from: parcel.from, header: parcel.header, payload: &parcel.payload };
                match machine.handle_frame(&frame) {
                    Ok(Verdict::Later) => true,
                    Ok(Verdict::Stale) => false,
                    Ok(Verdict::Taken) => {
                        taken = true;
                        gathering |= parcel.header.tag.round > 0;
                        false
                    }
                    Err(error) => {
                        foreign = Some(error);
                        false
                    }
                }
            });
        }
        if let Some(error) = foreign {
            tools.asks.push(Ask::Foreign(error));
        }
        while let Some(out) = machine.poll_send() {
            gathering |= out.header.tag.round > 0;
            let to = plane.peers[out.to.index()];
            let (header, payload) = (out.header, out.payload.to_vec());
            tools.asks.push(Ask::Send { to, from: machine.membership().rank, header, payload });
            machine.sent();
        }
        plane.gathering = gathering;
        let done = machine.is_done();
        if done && self.exchanges() {
            let Some(plane) = &mut self.plane else { return };
            let trailer = plane.machine.finish(Sequence(plane.sequence));
            match plane.host {
                Some(_) => self.host_exchanged(tools, trailer),
                None => {
                    self.ended(tools, trailer);
                    self.go(tools);
                }
            }
        }
    }

    /// A collective is over.
    pub(super) fn ended(&mut self, tools: &mut Tools<'_>, trailer: Trailer) {
        match self.doing {
            Doing::Reach => {
                let Some(plane) = &self.plane else { return };
                tools.tell(News::Built(plane.generation));
                self.doing = Doing::Rest;
            }
            Doing::Copy(_) => self.end_window(tools),
            Doing::Open => {
                self.doing = Doing::Rest;
                self.adopt(tools);
            }
            Doing::Reduce => {
                self.doing = Doing::Rest;
                self.reduced(trailer);
            }
            Doing::Meet => self.doing = Doing::Rest,
            Doing::Share(_) => self.end_piece(tools),
            Doing::Agree => self.agreed(tools),
            Doing::Gather => self.gathered(tools),
            Doing::GatherAll(_) => self.gathered_for(tools),
            Doing::Pass(_) => self.exchanged(tools),
            _ => {}
        }
    }
}

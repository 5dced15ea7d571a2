//! The data plane: frames in and out of the collective that is under way, and its end.

use super::{Ask, Compute, News, Task, Tools, Work};
use dtrain_collective::{Frame, Sequence, Verdict};
use dtrain_types::Trailer;

impl Compute {
    /// A collective has begun: what is there for it already is used.
    pub(super) fn began(&mut self, tools: &mut Tools<'_>) {
        self.break_off_if_lost(tools);
        self.pump(tools);
    }

    pub(super) fn break_off_if_lost(&mut self, tools: &mut Tools<'_>) {
        let waits = matches!(self.task, Task::Meet | Task::Copy(_) | Task::Reduce(_)) && !self.working;
        if waits && self.plane.as_ref().is_some_and(|plane| !plane.lost.is_empty()) {
            self.break_off(tools, "a connection broke".to_owned());
        }
    }

    pub(super) fn break_off(&mut self, tools: &mut Tools<'_>, why: String) {
        let Some(plane) = self.plane.take() else { return };
        self.task = Task::Rest;
        self.todo.clear();
        let unreachable = plane.lost.into_iter().collect();
        tools.tell(News::Broken { generation: plane.generation, why, unreachable });
    }

    /// Uses every frame whose time has come, sends what can leave, and ends the collective when it is done.
    pub(super) fn pump(&mut self, tools: &mut Tools<'_>) {
        let Some(plane) = &mut self.plane else { return };
        let machine = &mut plane.machine;
        let (mut foreign, mut gathering) = (None, plane.gathering);
        self.parked.retain(|parcel| {
            let frame = Frame { from: parcel.from, header: parcel.header, payload: &parcel.payload };
            match machine.handle_frame(&frame) {
                Ok(Verdict::Later) => true,
                Ok(Verdict::Stale) => false,
                Ok(Verdict::Taken) => {
                    gathering |= parcel.header.tag.round > 0;
                    false
                }
                Err(error) => {
                    foreign = Some(error);
                    false
                }
            }
        });
        if let Some(error) = foreign {
            tools.asks.push(Ask::Foreign(error));
        }
        while let Some(out) = machine.poll_send() {
            gathering |= out.header.tag.round > 0;
            let to = plane.members.seats[out.to.index()].member;
            let (header, payload) = (out.header, out.payload.to_vec());
            tools.asks.push(Ask::Send { to, from: plane.rank, header, payload });
            machine.sent();
        }
        plane.gathering = gathering;
        let collective = matches!(self.task, Task::Meet | Task::Copy(_) | Task::Reduce(_));
        let in_collective = collective && !self.working;
        if in_collective && machine.is_done() {
            let trailer = machine.finish(Sequence(plane.sequence));
            self.ended(tools, trailer);
        }
    }

    pub(super) fn ended(&mut self, tools: &mut Tools<'_>, trailer: Trailer) {
        match &self.task {
            Task::Meet => {
                let Some(plane) = &self.plane else { return };
                tools.tell(News::Built(plane.generation));
                self.task = Task::Rest;
            }
            Task::Copy(_) => self.end_window(tools),
            Task::Reduce(plan) => {
                self.task = Task::Update(*plan, trailer);
                self.work(tools, Work::Update);
            }
            _ => {}
        }
    }
}

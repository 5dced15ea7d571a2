//! Hosts that are asked to leave the run: each goes at a step boundary, once what it holds of the state is with others.
//!
//! This file does not know how a generation is formed, nor who copies what.

use super::Supervisor;
use super::slot::{After, Slot};
use crate::effect::SupervisorEffect;
use crate::phase::Phase;
use dtrain_types::{Instant, MemberId, NodeId};

/// Whether the members of a node may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    /// At once: others hold what they do.
    Go,
    /// When a generation has begun with them: it gives others what they alone hold.
    GoLater,
    /// When processes that are starting take part.
    GoBehindOthers,
}

impl Supervisor {
    /// A node asks to leave: at the next step boundary its members go.
    pub(super) fn let_go(&mut self, now: Instant, node: NodeId, effects: &mut Vec<SupervisorEffect>) {
        if !self.slots.values().any(|slot| self.stays(slot.node) && slot.is_hopeful()) || self.is_ending() {
            return self.handle_request(now, super::Request::Drain, effects);
        }
        if self.phase == Phase::Join && self.may_go(node) == May::Go {
            self.release(node);
        }
        // Whoever holds no rank may go at once.
        for member in self.members_of(node) {
            let goes = self.slots[&member].life().is_none_or(|life| life.refused);
            if goes || self.phase != Phase::Join && self.rank_of(member).is_none() {
                self.kill(now, member, After::Nothing, effects);
            }
        }
    }

    /// Whether a node was not asked to leave.
    pub(super) fn stays(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|view| !view.leaving)
    }

    /// The members of this generation that go at the next boundary.
    pub(super) fn are_to_go(&self) -> Vec<MemberId> {
        let goes = |node: NodeId| !self.stays(node) && self.may_go(node) != May::GoBehindOthers;
        let members = self.membership.participants.iter();
        members.filter(|participant| goes(participant.node)).map(|participant| participant.member).collect()
    }

    /// All have made the last step of a generation: who was asked to leave goes, one node after the other, as long as those that are left
    /// hold the state. Not where a generation breaks off: perhaps somebody has died of whom nobody has heard yet.
    ///
    /// 1. Three hosts share out a state; hosts 0 and 1 keep the same shard, and are asked to leave in one moment.
    /// 2. *Unsafe*: both go at the next boundary, and the run goes back to its newest checkpoint, although nobody died.
    /// 3. So host 0 goes, hosts 1 and 2 begin a generation, in which host 2 gets what it lacks, and host 1 goes behind its first step.
    pub(super) fn release_who_may_go(&mut self) {
        let leaving = self.nodes.iter().filter(|(_, view)| view.leaving && !view.released);
        let mut leaving: Vec<_> = leaving.map(|(node, view)| (view.kept_from.is_none(), *node)).collect();
        leaving.sort_unstable();
        let (generation, mut somebody_goes) = (self.generation, false);
        for (_, node) in leaving {
            let kept_from = self.nodes[&node].kept_from;
            let goes = match self.may_go(node) {
                May::GoBehindOthers => continue,
                May::Go => true,
                // What a generation did not give to others, none does: each part is kept once.
                May::GoLater => !somebody_goes && kept_from.is_some_and(|kept| kept < generation),
            };
            if goes {
                self.release(node);
                somebody_goes = true;
            } else if let Some(view) = self.nodes.get_mut(&node) {
                view.kept_from = Some(generation);
            }
        }
    }

    fn release(&mut self, node: NodeId) {
        if let Some(view) = self.nodes.get_mut(&node) {
            view.released = true;
        }
        self.members_of(node).into_iter().for_each(|member| self.refuse(member));
    }

    fn may_go(&self, node: NodeId) -> May {
        // Those of a node that is released are refused.
        let able = |without: Option<NodeId>| {
            self.slots.values().filter(move |slot| Some(slot.node) != without).filter_map(Slot::able)
        };
        if self.is_held(able(Some(node))) || !self.is_held(able(None)) {
            return May::Go;
        }
        let comes = |slot: &Slot| slot.life().is_none_or(|life| life.applied.is_none());
        if self.slots.values().any(|slot| self.stays(slot.node) && slot.is_hopeful() && comes(slot)) {
            return May::GoBehindOthers;
        }
        May::GoLater
    }
}

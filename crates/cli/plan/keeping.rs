//! How ranks keep the state where that was left to dtrain: whole, unless their GPUs have room for its shards alone.
//!
//! It does not know how much memory a GPU has, nor what a shard is.

use super::Plan;
use crate::config::{Config, Problem, Reduce};
use crate::error::CliError;
use crate::gpus::Chosen;
use dtrain_engine::ModelReplica;

impl Plan {
    /// Says how ranks keep the state, where that was left to dtrain; gives what to say of it, if they share it out.
    ///
    /// *Errors*: as [`Plan::prototype`].
    pub fn choose_state(&mut self, chosen: &Chosen) -> Result<Option<String>, CliError> {
        let on_gpus = chosen.cuda().is_some() && self.external().is_none() && self.check_device().is_ok();
        if !(self.config.state_as_fits() && on_gpus && self.may_shard()) {
            return Ok(None);
        }
        let Err(problem) = self.room(chosen)? else { return Ok(None) };
        let shards = self.config.with_state_in_shards();
        let whole = std::mem::replace(&mut self.config, shards);
        if self.room(chosen)?.is_err() {
            self.config = whole;
            return Ok(None);
        }
        let lacks = problem.message;
        Ok(Some(format!(
            "state: auto: {lacks}, with a whole state each: they keep shards of it (state=sharded)"
        )))
    }

    /// Whether ranks that keep whole states could share one out.
    pub(super) fn may_shard(&self) -> bool {
        let Config { reduce, optimizer, world, .. } = &self.config;
        let can = *reduce == Reduce::Exact && optimizer.rule.in_shares();
        can && world.redundancy.is_none() && world.ranks > 1
    }

    /// Whether the GPUs have room for their ranks, as far as that is known.
    fn room(&self, chosen: &Chosen) -> Result<Result<(), Problem>, CliError> {
        let replica = self.replica_in_groups(1, self.blocks()[0], ModelReplica::blank)?;
        Ok(chosen.has_room(&self.config, self.memory(&replica, chosen).total()))
    }
}

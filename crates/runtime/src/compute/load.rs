//! How a rank comes by the state that a generation starts with: it makes it, reads it, copies it, shares it, or holds its shards of it.
//!
//! It does not know why it is that state.

use super::Compute;
use crate::broke::{Broke, engine, off};
use crate::copy_state::{Roles, copy_state};
use crate::news::News;
use crate::{sharded_state, shared_state};
use dtrain_protocol::{Digest, Failure, Loaded, ResumePoint, StartFrom, StateSource};
use dtrain_types::{Generation, Holding};

impl Compute {
    /// Takes the state that a generation starts with, or lends it.
    pub(super) fn load(&mut self, generation: Generation, resume_point: &ResumePoint) -> Result<(), Broke> {
        let Some(plane) = &mut self.plane else { return Err(Broke::Off("the data plane is gone".into())) };
        if plane.shards.is_some() {
            return self.load_shards(generation, resume_point);
        }
        let replica = self.parts.replica.as_mut();
        replica.bring_state().map_err(engine)?;
        let (rank, world) = (plane.membership.rank, plane.membership.world());
        let sources = match &resume_point.source {
            StateSource::Start(StartFrom::Fresh) => None,
            StateSource::Start(StartFrom::Checkpoint(id)) => {
                if plane.writers.contains(&rank) {
                    crate::state_files::load(&self.parts.run_dir, *id, &self.specs, replica)
                        .map_err(Failure::Setup)?;
                }
                Some(&plane.writers)
            }
            StateSource::Ranks(sources) => Some(sources),
            StateSource::Shards(_) => return Err(Failure::Setup("this rank holds no shards".into()).into()),
        };
        let shared = replica.sharing().is_some();
        if let Some(sources) = sources.filter(|sources| !sources.is_empty() && !shared) {
            let roles = Roles::new(sources, world, rank);
            copy_state(plane.backend.as_mut(), &mut plane.sequence, replica, resume_point.step, &roles)
                .map_err(off)?;
        }
        if shared {
            shared_state::open(plane, replica, resume_point)?;
        }
        self.has_state = true;
        let state = replica.bring_state().map_err(engine)?;
        let (applied, state_digest) = (state.applied, Digest(state.state_digest()));
        self.news.tell(News::Loaded(Loaded { generation, applied, holding: Holding::whole(), state_digest }));
        Ok(())
    }

    /// As [`Compute::load`], where ranks hold shards of the state.
    fn load_shards(&mut self, generation: Generation, resume_point: &ResumePoint) -> Result<(), Broke> {
        let Some(plane) = &mut self.plane else { return Err(Broke::Off("the data plane is gone".into())) };
        let (replica, step) = (self.parts.replica.as_mut(), resume_point.step);
        match &resume_point.source {
            StateSource::Start(StartFrom::Fresh) => {
                sharded_state::begin(plane, replica, step).map_err(engine)?;
            }
            StateSource::Start(StartFrom::Checkpoint(id)) => {
                let held = sharded_state::readers(plane);
                let own = &held[plane.membership.rank.index()];
                if !own.is_none() {
                    crate::state_files::load_shards(&self.parts.run_dir, *id, &self.specs, replica, own)
                        .map_err(Failure::Setup)?;
                }
                sharded_state::share_out(plane, replica, &held, step)?;
            }
            StateSource::Shards(held) => {
                if sharded_state::catch_up(replica, step)? {
                    self.news.tell(News::CaughtUp(generation, step));
                }
                sharded_state::share_out(plane, replica, held, step)?;
            }
            StateSource::Ranks(_) => {
                return Err(Failure::Setup("the ranks are to hold shards, and some hold all".into()).into());
            }
        }
        self.has_state = true;
        let state = replica.bring_state().map_err(engine)?;
        let (applied, state_digest) = (state.applied, Digest(state.common_digest()));
        let holding = replica.sharding().expect("it holds shards").holding().clone();
        self.news.tell(News::Loaded(Loaded { generation, applied, holding, state_digest }));
        Ok(())
    }
}

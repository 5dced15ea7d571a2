//! A state of which each rank holds some shards: how a rank comes by them, the parts of an update, and what all of it comes to.
//!
//! The order of the parts is the agenda's. Parameters are whole on every rank; what a rank has of them beyond its shards is a copy of what others hold,
//! brought anew at the beginning of every generation. This file does not know why ranks hold what they hold.

use crate::broke::{Broke, engine, off};
use crate::data_plane::DataPlane;
use dtrain_collective::Op;
use dtrain_engine::{
    EngineError, Lies, Piece, ReducedSum, Replica, Section, Sharding, UpdateInfo, UpdateShare,
};
use dtrain_protocol::Failure;
use dtrain_types::{Holders, Holding, NodeId, Rank, Step, Trailer};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Makes the update that this rank measured and left, if the state to go on with has it; tells whether.
///
/// *Errors*: it is behind, and has measured no update.
pub fn catch_up(replica: &mut dyn Replica, step: Step) -> Result<bool, Broke> {
    let behind = replica.applied().next() == step;
    let sharding = sharding(replica);
    if !behind || sharding.holding().is_none() {
        return Ok(false);
    }
    if sharding.measured() != Some(step) {
        return Err(Failure::Setup(format!("the sum of step {step} was not kept")).into());
    }
    sharding.settle().map_err(engine)?;
    sharding.update_held().map_err(engine)?;
    Ok(true)
}

/// Gives this rank what it holds in this generation of the state of `step`, from those who hold it now, and the parameters of the rest.
///
/// *Blocks* until all ranks have what they need. *Errors*: the collectives broke off, or what came is not what was sent. The replica then holds
/// what it held.
pub fn share_out(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    held: &[Holding],
    step: Step,
) -> Result<(), Broke> {
    let rank = plane.membership.rank;
    let holders = &plane.shards.as_ref().expect(SHARDED).holders;
    let Some(pieces) = Piece::all(replica.about().state, held, holders) else {
        let words = format!("the ranks that are there do not hold the state of step {step}");
        return Err(Failure::Setup(words).into());
    };
    let mut moments = sharding(replica).prepare(&holders.holding(rank)).map_err(engine)?;
    for piece in pieces {
        let Piece { section, elements, source, targets } = &piece;
        let len = elements.len();
        if *source == rank {
            let slot = &mut plane.backend.arena().lease(0)[..len];
            sharding(replica).read(*section, elements.start, slot).map_err(engine)?;
        }
        plane.sequence.0 += 1;
        plane.backend.start(plane.sequence, &Op::Copy { sources: &[*source], targets, len }).map_err(off)?;
        plane.backend.finish(plane.sequence).map_err(off)?;
        if targets.contains(&rank) {
            let slot = &plane.backend.arena().lease(0)[..len];
            match piece.is_of_moments() {
                true => moments.part_mut(*section, elements.clone()).copy_from_slice(slot),
                false => sharding(replica).write(*section, elements.start, slot).map_err(engine)?,
            }
        }
    }
    Ok(sharding(replica).adopt(moments, step).map_err(engine)?)
}

/// Begins with what this rank has of its own: first values, or those of a checkpoint.
///
/// *Errors*: of the device.
pub fn begin(plane: &DataPlane, replica: &mut dyn Replica, step: Step) -> Result<(), EngineError> {
    let shards = plane.shards.as_ref().expect(SHARDED);
    let moments = sharding(replica).prepare(&shards.holders.holding(plane.membership.rank))?;
    sharding(replica).adopt(moments, step)
}

/// Which shards each rank reads of a checkpoint: its own, where all see the run folder. Else those who see it have all of it together.
pub fn readers(plane: &DataPlane) -> Vec<Holding> {
    let shards = plane.shards.as_ref().expect(SHARDED);
    let ranks = (0..plane.membership.world().0).map(Rank);
    let writers = &plane.writers;
    if writers.len() == plane.membership.world().0 as usize {
        return ranks.map(|rank| shards.holders.holding(rank)).collect();
    }
    let among = Holders::new(&vec![NodeId(0); writers.len().max(1)], 1);
    let place = |rank: Rank| writers.iter().position(|writer| *writer == rank);
    let holding = |rank| place(rank).map_or_else(Holding::default, |place| among.holding(Rank(place as u32)));
    ranks.map(holding).collect()
}

/// Keeps what this rank needs of the sum, and looks at its share. Nothing is changed yet.
///
/// *Errors*: of the device.
pub fn measure(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    step: Step,
    trailer: &Trailer,
) -> Result<(), EngineError> {
    let share = match exchanges(plane, replica) {
        true => UpdateShare { index: plane.membership.rank.index(), of: world(plane) },
        false => UpdateShare { index: 0, of: 1 },
    };
    let Trailer { weight, samples, .. } = *trailer;
    let lies = match plane.gradients.reduced_is_kept() {
        true => Lies::Kept,
        false => Lies::Home(plane.backend.reduced()),
    };
    sharding(replica).measure(step, ReducedSum { lies, weight, samples }, share)
}

/// Learns what the others have measured; tells how long it waited for them.
///
/// *Blocks* until all have measured.
pub fn agree(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<Duration, Broke> {
    if !exchanges(plane, replica) {
        return Ok(Duration::ZERO);
    }
    let rank = plane.membership.rank.index();
    let cuts = &plane.shards.as_ref().expect(SHARDED).words;
    sharding(replica).tell(&mut plane.backend.arena().lease(0)[cuts[rank]..cuts[rank + 1]]);
    let begun = Instant::now();
    plane.sequence.0 += 1;
    plane.backend.start(plane.sequence, &Op::AllGather { cuts: Some(cuts) }).map_err(off)?;
    plane.backend.finish(plane.sequence).map_err(off)?;
    let waited = begun.elapsed();
    sharding(replica).hear(&plane.backend.arena().lease(0)[..cuts[cuts.len() - 1]]);
    Ok(waited)
}

/// Whether ranks look at shares of the sum, and there is room in a slot for what all have measured: else each looks at all of it.
fn exchanges(plane: &DataPlane, replica: &mut dyn Replica) -> bool {
    let words = plane.shards.as_ref().expect(SHARDED).words.last().copied().unwrap_or(0);
    world(plane) > 1 && words <= replica.about().gradient_len() && sharding(replica).looks_at_shares()
}

fn world(plane: &DataPlane) -> usize {
    plane.membership.world().0 as usize
}

/// Says what the update comes to that was measured.
///
/// *Errors*: as `Replica::update`, all ranks alike.
pub fn settle(replica: &mut dyn Replica) -> Result<UpdateInfo, EngineError> {
    sharding(replica).settle()
}

/// Updates what this rank holds.
///
/// *Errors*: of the device.
pub fn update(replica: &mut dyn Replica) -> Result<(), EngineError> {
    sharding(replica).update_held()
}

/// Gives all the parameters that this rank owns, and takes the others'; tells how long it waited for them.
///
/// *Blocks* until all ranks have them.
pub fn gather(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<Duration, Broke> {
    if plane.shards.as_ref().expect(SHARDED).holders.hold_all() {
        return Ok(Duration::ZERO);
    }
    let parameters = replica.about().layout.parameters;
    let on_device = plane.gradients.reduced_is_kept();
    if let Some(keeper) = replica.keeping().filter(|_| on_device) {
        // The slot is gradient 0: nothing visits the host.
        let own = owned(plane);
        keeper.lay(own.clone());
        let waited = all_gather(plane)?;
        [0..own.start, own.end..parameters].into_iter().for_each(|part| keeper.pick(part));
        return Ok(waited);
    }
    let (own, waited) = gather_section(plane, replica, Section::Parameters)?;
    let slot = plane.backend.arena().lease(0);
    for part in [0..own.start, own.end..parameters] {
        sharding(replica).write(Section::Parameters, part.start, &slot[part]).map_err(engine)?;
    }
    Ok(waited)
}

/// What this rank owns of the parameters.
fn owned(plane: &DataPlane) -> Range<usize> {
    plane.shards.as_ref().expect(SHARDED).owned(plane.membership.rank)
}

/// Brings what each rank owns of slot 0 to all of them; tells how long it waited.
fn all_gather(plane: &mut DataPlane) -> Result<Duration, Broke> {
    let cuts = &plane.shards.as_ref().expect(SHARDED).cuts;
    let begun = Instant::now();
    plane.sequence.0 += 1;
    plane.backend.start(plane.sequence, &Op::AllGather { cuts: Some(cuts) }).map_err(off)?;
    plane.backend.finish(plane.sequence).map_err(off)?;
    Ok(begun.elapsed())
}

/// Turns to the state after this update.
pub fn commit(replica: &mut dyn Replica, step: Step) {
    sharding(replica).commit(step);
}

/// Has a section in slot 0 of every rank, from its owners; tells which part is this rank's own, and how long it waited.
fn gather_section(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    section: Section,
) -> Result<(Range<usize>, Duration), Broke> {
    let own = owned(plane);
    let slot = &mut plane.backend.arena().lease(0)[own.clone()];
    sharding(replica).read(section, own.start, slot).map_err(engine)?;
    Ok((own, all_gather(plane)?))
}

/// Every section of the state, one after the other, whole: those that ranks hold by shards are gathered for it. All ranks call it alike.
///
/// *Blocks* until all have it. *Errors*: this rank holds something else than the shard's owner does.
pub fn for_each_section(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    mut each: impl FnMut(Section, &[f32]),
) -> Result<(), Broke> {
    let lengths = replica.about().state.lengths();
    for (section, len) in Section::ALL.into_iter().zip(lengths) {
        if len == 0 || !matches!(section, Section::First | Section::Second) {
            each(section, replica.bring_state().map_err(engine)?.section(section));
            continue;
        }
        gather_section(plane, replica, section)?;
        let whole = &plane.backend.arena().lease(0)[..len];
        compare(replica, section, whole)?;
        each(section, whole);
    }
    // A slot of a device is its own again.
    plane.backend.arena().on_device(0);
    Ok(())
}

/// Elements that are compared at once.
const COMPARED: usize = 16 * 1024;

/// *Errors*: this rank holds something else of a section.
fn compare(replica: &mut dyn Replica, section: Section, whole: &[f32]) -> Result<(), Broke> {
    let runs = sharding(replica).holding().elements(whole.len());
    let mut held = vec![0.0; COMPARED.min(whole.len())];
    for from in runs
        .into_iter()
        .flat_map(|run| run.clone().step_by(COMPARED).map(move |at| at..run.end.min(at + COMPARED)))
    {
        let held = &mut held[..from.len()];
        sharding(replica).read(section, from.start, held).map_err(engine)?;
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        if !held.iter().zip(&whole[from]).all(same) {
            let words = format!("what this rank holds of {} differs from what its owner has", section.name());
            return Err(Failure::Engine(words).into());
        }
    }
    Ok(())
}

fn sharding(replica: &mut dyn Replica) -> &mut dyn Sharding {
    replica.sharding().expect(SHARDED)
}

/// Why there are shards: nobody asks otherwise.
const SHARDED: &str = "whoever asks has seen that ranks hold shards";

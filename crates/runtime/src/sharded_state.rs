//! A state of which each rank holds some shards: how a rank comes by them, the parts of an update, and what all of it comes to.
//!
//! The order of the parts is the agenda's. Parameters are whole on every rank; what a rank has of them beyond its shards is a copy of what others hold,
//! brought anew at the beginning of every generation. This file does not know why ranks hold what they hold.

use crate::broke::{Broke, engine, off};
use crate::carrier::CarriedRounds;
use crate::data_plane::DataPlane;
use crate::exchange::move_floats;
use crate::recipe::ComputeParts;
use crate::shards::Shards;
use dtrain_collective::{CollectiveError, Narrow, Op, Take};
use dtrain_engine::{
    EngineError, Keeping, Lies, Piece, ReducedSum, Replica, Section, Sharding, ShardingThere, UpdateInfo,
    UpdateShare, Words, needed,
};
use dtrain_protocol::Failure;
use dtrain_rounds::{Exchange, GatherPiece, Memory, Rounds, RoundsPlan};
use dtrain_types::{Holders, Holding, NodeId, Rank, ShardLevel, Step, Trailer, Wire};
use std::time::Duration;

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
        return Err(Failure::Behind { step }.into());
    }
    sharding.settle().map_err(engine)?;
    sharding.update_held(None).map_err(engine)?;
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
    let state = replica.about().state;
    let is_held = Section::ALL.map(|section| sharding(replica).holds(section));
    let Some(pieces) = Piece::all(state, held, holders, |section| is_held[section as usize]) else {
        let words = format!("the ranks that are there do not hold the state of step {step}");
        return Err(Failure::Setup(words).into());
    };
    let mut moments = sharding(replica).prepare(&holders.holding(rank)).map_err(engine)?;
    for piece in pieces {
        let Piece { section, elements, source, targets } = &piece;
        for from in elements.clone().step_by(plane.geometry.len.max(1)) {
            let elements = from..elements.end.min(from + plane.geometry.len);
            let len = elements.len();
            if *source == rank {
                let slot = plane.backend.arena().lease_part(0, 0..len);
                sharding(replica).read(*section, from, slot).map_err(engine)?;
            }
            let copy = Op::Copy { sources: &[*source], targets, len };
            move_floats(plane.backend.as_mut(), &mut plane.sequence, &copy)?;
            if targets.contains(&rank) {
                let slot = plane.backend.arena().lease_part(0, 0..len);
                match is_held[*section as usize] {
                    true => moments.part_mut(*section, elements).copy_from_slice(slot),
                    false => sharding(replica).write(*section, from, slot).map_err(engine)?,
                }
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

/// Prepares what ranks exchange in a step: in rounds, where nobody has all of a gradient.
///
/// *Errors*: of the device.
pub fn prepare(plane: &mut DataPlane, parts: &mut ComputeParts) -> Result<(), Broke> {
    let about = parts.replica.about();
    let Some(windows) = about.windows.clone() else {
        narrow(plane, parts.replica.as_mut());
        return Ok(());
    };
    let lengths = (about.layout.parameters, about.gradient_len());
    let (rank, slot) = ((plane.membership.rank, world(plane)), plane.geometry.len);
    let micro_batches = parts.feed.plan().micro_batches();
    let level = match parts.replica.gathering() {
        Some(_) => ShardLevel::Parameters,
        None => ShardLevel::Gradients,
    };
    let is_there = parts.wire == Wire::F32 && works_there(plane, parts.replica.as_mut());
    let DataPlane { shards, backend, .. } = &mut *plane;
    let Shards { holders, cuts, .. } = shards.as_ref().expect(SHARDED);
    let wire = parts.wire;
    let of = RoundsPlan { holders, cuts, rank, windows: &windows, lengths, slot, micro_batches, wire, level };
    let rounds = match backend.as_mut().device_slot().filter(|_| is_there) {
        Some(slot) => Rounds::there(&of, slot).map_err(no_memory)?,
        None => Rounds::new(&of),
    };
    plane.rounds = Some(CarriedRounds::new(rounds));
    Ok(())
}

/// Why a backend lends no memory: the device says no, and would again in the next generation, or the collectives are over.
fn no_memory(error: CollectiveError) -> Broke {
    match error {
        CollectiveError::Device { what } => engine(EngineError::NoRoom(what)).into(),
        error => off(error),
    }
}

/// Whether the slots are memory in which the replica works.
fn works_there(plane: &mut DataPlane, replica: &mut dyn Replica) -> bool {
    let slot = plane.backend.as_mut().arena().on_device(0);
    slot.zip(sharding(replica).there()).is_some_and(|(slot, there)| there.works_in(&slot))
}

/// Begins a step in rounds, in memory that the replica lends for the sum. *Errors*: of the device.
pub fn begin_rounds(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<(), Broke> {
    let (rounds, mut wires) = plane.in_rounds();
    let elements = rounds.kept().elements();
    let memory = match sharding(replica).there().filter(|_| rounds.are_there()) {
        None => Memory::Home(sharding(replica).lend_sum(elements)),
        Some(there) => Memory::There(match there.lend_sum(elements) {
            Some(memory) => memory,
            None => wires.device_slot().expect(THERE).memory(elements).map_err(no_memory)?,
        }),
    };
    rounds.begin(memory);
    Ok(())
}

/// Says what each rank needs of a sum, and what it has of the parameters after an update.
fn narrow(plane: &mut DataPlane, replica: &mut dyn Replica) {
    let (parameters, gradient) = (replica.about().layout.parameters, replica.about().gradient_len());
    let (all, of) = (!exchanges(plane), world(plane));
    let holders = &plane.shards.as_ref().expect(SHARDED).holders;
    let one = |index: usize| {
        let holding = holders.holding(Rank(index as u32));
        let share = UpdateShare { index, of };
        let whole = std::iter::once(0..gradient).collect();
        let needs = if all { whole } else { needed(&holding, share, parameters, gradient) };
        [needs, holding.elements(parameters)]
    };
    plane.backend.narrow(&Narrow::new((0..of).map(one)));
}

/// Looks at this rank's share of the sum, and takes what it needs of it, if that does not stay where it is. Nothing is changed yet.
///
/// *Errors*: of the device.
pub fn measure(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    step: Step,
    trailer: &Trailer,
) -> Result<(), EngineError> {
    let share = match exchanges(plane) {
        true => UpdateShare { index: plane.membership.rank.index(), of: world(plane) },
        false => UpdateShare { index: 0, of: 1 },
    };
    let Trailer { weight, samples, .. } = *trailer;
    let lies = match &mut plane.rounds {
        Some(CarriedRounds { rounds, .. }) => {
            let kept = rounds.kept().clone();
            match rounds.take() {
                Memory::Home(sum) => Lies::Folded { kept, sum },
                Memory::There(sum) => Lies::FoldedThere { kept, sum },
            }
        }
        None if plane.gradients.reduced_is_kept() => Lies::Kept,
        None => Lies::Home(plane.backend.reduced()),
    };
    sharding(replica).measure(step, ReducedSum { lies, weight, samples }, share)
}

/// Learns what the others have measured; tells how long it waited for them.
///
/// *Blocks* until all have measured.
pub fn agree(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<Duration, Broke> {
    if !exchanges(plane) {
        return Ok(Duration::ZERO);
    }
    let (rank, kept) = (plane.membership.rank.index(), plane.gradients.reduced_is_kept());
    let is_home = sharding(replica).sum_is_home();
    let Shards { words: cuts, displaced, .. } = plane.shards.as_mut().expect(SHARDED);
    let (own, all) = (cuts[rank]..cuts[rank + 1], 0..cuts[cuts.len() - 1]);
    if is_home {
        // What ranks tell one another goes through the memory of the sum, which the update reads.
        displaced.clear();
        displaced.extend_from_slice(plane.backend.arena().lease_part(0, all.clone()));
    }
    let told = match kept {
        true => Words::Kept(own),
        false => Words::Home(plane.backend.arena().lease_part(0, own)),
    };
    sharding(replica).tell(told).map_err(engine)?;
    let gather = Op::AllGather { cuts: Some(cuts), take: Take::All };
    let waited = move_floats(plane.backend.as_mut(), &mut plane.sequence, &gather)?;
    let heard = match kept {
        true => Words::Kept(all.clone()),
        false => Words::Home(plane.backend.arena().lease_part(0, all.clone())),
    };
    sharding(replica).hear(heard).map_err(engine)?;
    if is_home {
        let displaced = &plane.shards.as_ref().expect(SHARDED).displaced;
        plane.backend.arena().lease_part(0, all).copy_from_slice(displaced);
    }
    Ok(waited)
}

/// Whether there is room in a slot for what all have measured: else each looks at all of the sum.
fn exchanges(plane: &DataPlane) -> bool {
    let words = plane.shards.as_ref().expect(SHARDED).words.last().copied().unwrap_or(0);
    world(plane) > 1 && words <= plane.geometry.len
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
pub fn update(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<(), EngineError> {
    let home = sharding(replica).sum_is_home().then(|| plane.backend.reduced());
    sharding(replica).update_held(home)
}

/// The generation is left: keeps what the update needs that was measured and that others may have made.
pub fn keep_sum(plane: &mut DataPlane, replica: &mut dyn Replica) {
    let sharding = sharding(replica);
    if sharding.sum_is_home() && sharding.measured().is_some() {
        sharding
            .keep_sum(plane.backend.reduced_before().expect("a sum in the memory of the host stays there"));
    }
}

/// Gives all the parameters that this rank owns, and takes the others', unless each has but its own; tells how long it waited for them.
///
/// *Blocks* until all ranks have them.
pub fn gather(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<Duration, Broke> {
    if replica.gathering().is_some() || plane.shards.as_ref().expect(SHARDED).holders.hold_all() {
        return Ok(Duration::ZERO);
    }
    if plane.gradients.reduced_is_kept() {
        // The slot is gradient 0: nothing visits the host.
        let shards = plane.shards.as_ref().expect(SHARDED);
        shards.held.iter().for_each(|run| keeper(replica).lay(run.clone()));
        let waited = gather_rest(plane)?;
        let shards = plane.shards.as_ref().expect(SHARDED);
        shards.lacks.iter().for_each(|run| keeper(replica).pick(run.clone()));
        return Ok(waited);
    }
    let is_there = plane.rounds.as_ref().is_some_and(|it| it.rounds.are_there());
    let mut waited = Duration::ZERO;
    for number in 0..plane.shards.as_ref().expect(SHARDED).gathers.len() {
        let DataPlane { shards, backend, sequence, rounds, .. } = &mut *plane;
        let GatherPiece { from, held, lacks, cuts, narrow, .. } =
            &shards.as_ref().expect(SHARDED).gathers[number];
        let slot = is_there.then(|| backend.as_mut().arena().on_device(0).expect(THERE));
        for run in held {
            match &slot {
                Some(slot) => there(replica).lay(Section::Parameters, run.clone(), slot, run.start - from),
                None => {
                    let slot = &mut backend.arena().lease(0)[run.start - from..run.end - from];
                    sharding(replica).read(Section::Parameters, run.start, slot).map_err(engine)?;
                }
            }
        }
        if rounds.is_some() {
            backend.narrow(narrow);
        }
        let gather = Op::AllGather { cuts: Some(cuts), take: Take::Rest };
        waited += move_floats(backend.as_mut(), sequence, &gather)?;
        if let Some(slot) = &slot {
            lacks.iter().for_each(|run| there(replica).pick(run.clone(), slot, run.start - from));
            continue;
        }
        let slot = backend.arena().lease(0);
        for run in lacks {
            let values = &slot[run.start - from..run.end - from];
            sharding(replica).write(Section::Parameters, run.start, values).map_err(engine)?;
        }
    }
    Ok(waited)
}

fn keeper(replica: &mut dyn Replica) -> &mut dyn Keeping {
    replica.keeping().expect("a sum that is kept is kept by the replica")
}

/// Brings to each rank what it does not hold of what the owners have in slot 0; tells how long it waited.
fn gather_rest(plane: &mut DataPlane) -> Result<Duration, Broke> {
    let cuts = &plane.shards.as_ref().expect(SHARDED).cuts;
    let gather = Op::AllGather { cuts: Some(cuts), take: Take::Rest };
    move_floats(plane.backend.as_mut(), &mut plane.sequence, &gather)
}

/// Turns to the state after this update.
pub fn commit(replica: &mut dyn Replica, step: Step) {
    sharding(replica).commit(step);
}

/// What the replica does with its shards. *Panics* if it holds a whole state.
pub fn sharding(replica: &mut dyn Replica) -> &mut dyn Sharding {
    replica.sharding().expect(SHARDED)
}

/// What the replica does in the memory of the device in which windows lie.
fn there(replica: &mut dyn Replica) -> &mut dyn ShardingThere {
    sharding(replica).there().expect(THERE)
}

/// Why there is a slot there: rounds say where their windows lie.
const THERE: &str = "windows lie on the device of the slot";

/// Why there are shards: nobody asks otherwise.
pub const SHARDED: &str = "whoever asks has seen that ranks hold shards";

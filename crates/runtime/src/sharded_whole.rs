//! What looks at all of a state of which each rank holds some shards: its digest, and what the ranks write of a checkpoint.
//!
//! Nobody has all of it. A group of bytes is hashed by whoever owns all of it, and what it comes to goes to all; where owners meet in a group, its
//! elements go to all. A tensor is written by the rank that owns most of it, which gets the rest of it. This file does not know who holds what.

use crate::broke::{Broke, engine};
use crate::data_plane::DataPlane;
use crate::exchange::move_floats;
use crate::saver::ShardDraft;
use crate::sharded_state::{SHARDED, sharding};
use dtrain_checkpoint::TensorSpec;
use dtrain_collective::{Op, Take};
use dtrain_engine::{GroupValue, Replica, Section, StateTree};
use dtrain_protocol::Failure;
use dtrain_types::Rank;
use std::collections::BTreeMap;
use std::ops::Range;

/// Floats that carry what a group comes to.
const VALUE: usize = size_of::<GroupValue>() / size_of::<f32>();

/// What one rank tells all others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    owner: usize,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// What a group comes to.
    Value(usize),
    /// Elements of a section that only holders have.
    Elements(Section, Range<usize>),
}

impl Item {
    fn len(&self) -> usize {
        match &self.what {
            What::Value(_) => VALUE,
            What::Elements(_, elements) => elements.len(),
        }
    }
}

/// Of which sections ranks have but what they hold, in the order of [`Section::ALL`].
type HeldSections = [bool; Section::COUNT];

fn held(replica: &mut dyn Replica) -> HeldSections {
    Section::ALL.map(|section| sharding(replica).holds(section))
}

/// Whether elements lie in one of these runs.
fn lies_in(runs: &[Range<usize>], elements: &Range<usize>) -> bool {
    runs.iter().any(|run| run.start <= elements.start && elements.end <= run.end)
}

/// The runs of elements that these are cut into at the owners' cuts, each with its owner.
fn by_owner<'a>(
    cuts: &'a [usize],
    elements: &Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
    let (start, end) = (elements.start, elements.end);
    let owned = move |(owner, cut): (usize, &[usize])| {
        let both = start.max(cut[0])..end.min(cut[1]);
        (both.start < both.end).then_some((owner, both))
    };
    cuts.windows(2).enumerate().filter_map(owned)
}

/// What is told of the state for its digest, owner by owner: through a slot of so many floats.
fn items(tree: &StateTree, cuts: &[usize], slot: usize, is_held: &dyn Fn(Section) -> bool) -> Vec<Item> {
    let mut items = Vec::new();
    for group in 0..tree.groups() {
        let held: Vec<_> = tree.elements(group).filter(|(section, _)| is_held(*section)).collect();
        let runs = || {
            held.iter()
                .flat_map(|(section, run)| by_owner(cuts, run).map(|(owner, run)| (owner, *section, run)))
        };
        let Some((owner, ..)) = runs().next() else { continue };
        // What every rank has of a group is hashed by each: else nobody would see that one of them has something else.
        let is_held_alone = tree.elements(group).all(|(section, _)| is_held(section));
        if slot >= VALUE && is_held_alone && runs().all(|(other, ..)| other == owner) {
            items.push(Item { owner, what: What::Value(group) });
            continue;
        }
        for (owner, section, run) in runs() {
            let pieces = run.clone().step_by(slot.max(1));
            let piece = |at: usize| at..run.end.min(at + slot.max(1));
            items.extend(pieces.map(|at| Item { owner, what: What::Elements(section, piece(at)) }));
        }
    }
    items.sort_by_key(|item| item.owner);
    items
}

/// As many of the first items as a slot has room for: at least one, and where those of each owner begin and the last one's end.
fn round(items: &[Item], slot: usize, world: usize) -> (usize, Vec<usize>) {
    let (mut taken, mut ends) = (0, vec![0; world]);
    let mut total = 0;
    while let Some(item) = items.get(taken).filter(|item| taken == 0 || total + item.len() <= slot) {
        total += item.len();
        ends[item.owner] = total;
        taken += 1;
    }
    let mut cuts = vec![0];
    for end in ends {
        cuts.push(end.max(cuts[cuts.len() - 1]));
    }
    (taken, cuts)
}

/// The digest of all of the state, as [`dtrain_engine::State::state_digest`] has it. All ranks call it alike.
///
/// *Blocks* until all have it. *Errors*: this rank holds something else than the owner does.
pub fn state_digest(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<[u8; 32], Broke> {
    let tree = StateTree::new(replica.applied(), replica.about().state);
    digest(plane, replica, &tree)
}

/// The digest for people, as [`dtrain_engine::State::digest`] has it. All ranks call it alike.
///
/// *Blocks* and *errors*: as [`state_digest`].
pub fn model_digest(plane: &mut DataPlane, replica: &mut dyn Replica) -> Result<[u8; 32], Broke> {
    let tree = StateTree::of_model(replica.about().state);
    digest(plane, replica, &tree)
}

fn digest(plane: &mut DataPlane, replica: &mut dyn Replica, tree: &StateTree) -> Result<[u8; 32], Broke> {
    let (rank, world) = (plane.membership.rank.index(), plane.membership.world().0 as usize);
    let slot = plane.geometry.len;
    let held = held(replica);
    let is_held = |section: Section| held[section as usize];
    let items = items(tree, &plane.shards.as_ref().expect(SHARDED).cuts, slot, &is_held);
    let mut known = Known::default();
    let mut left = &items[..];
    while !left.is_empty() {
        let (taken, cuts) = round(left, slot, world);
        let (now, later) = left.split_at(taken);
        left = later;
        let mut at = cuts[rank];
        for item in now.iter().filter(|item| item.owner == rank) {
            let to = at..at + item.len();
            at = to.end;
            match &item.what {
                What::Value(group) => {
                    let value = as_floats(&value(tree, *group, replica, &known)?);
                    plane.backend.arena().lease_part(0, to).copy_from_slice(&value);
                }
                What::Elements(section, elements) => {
                    let to = plane.backend.arena().lease_part(0, to);
                    sharding(replica).read(*section, elements.start, to).map_err(engine)?;
                }
            }
        }
        let gather = Op::AllGather { cuts: Some(&cuts), take: Take::All };
        move_floats(plane.backend.as_mut(), &mut plane.sequence, &gather)?;
        let mut at = 0;
        for item in now {
            known.note(item, plane.backend.arena().lease_part(0, at..at + item.len()));
            at += item.len();
        }
    }
    // A slot of a device is its own again.
    plane.backend.arena().on_device(0);
    let own = plane.shards.as_ref().expect(SHARDED).owned(plane.membership.rank);
    known.compare(tree, replica, &own)?;
    let values: Result<Vec<GroupValue>, Broke> = (0..tree.groups())
        .map(|group| match known.values.get(&group) {
            Some(value) => Ok(*value),
            None => value(tree, group, replica, &known),
        })
        .collect();
    Ok(tree.digest(&values?))
}

/// What a rank has heard of the state.
#[derive(Default)]
struct Known {
    values: BTreeMap<usize, GroupValue>,
    /// Elements where owners meet, by section and the first of them.
    elements: BTreeMap<(usize, usize), Vec<f32>>,
}

impl Known {
    fn note(&mut self, item: &Item, floats: &[f32]) {
        match &item.what {
            What::Value(group) => {
                self.values.insert(*group, from_floats(floats));
            }
            What::Elements(section, elements) => {
                self.elements.insert((*section as usize, elements.start), floats.to_vec());
            }
        }
    }

    /// Writes elements of a section, all of which it heard.
    fn read(&self, section: Section, elements: &Range<usize>, to: &mut [f32]) {
        let section = section as usize;
        let before = self.elements.range(..=(section, elements.start)).next_back();
        let behind = self.elements.range((section, elements.start + 1)..(section, elements.end));
        for ((_, from), values) in before.into_iter().chain(behind).filter(|((of, _), _)| *of == section) {
            let both = elements.start.max(*from)..elements.end.min(from + values.len());
            if both.start < both.end {
                to[both.start - elements.start..both.end - elements.start]
                    .copy_from_slice(&values[both.start - from..both.end - from]);
            }
        }
    }

    /// Holds what this rank has of others against what they told, who own it.
    ///
    /// *Errors*: it is something else.
    fn compare(&self, tree: &StateTree, replica: &mut dyn Replica, own: &Range<usize>) -> Result<(), Broke> {
        let parameters = replica.about().layout.parameters;
        let (holds, there) = (sharding(replica).holding().elements(parameters), held(replica));
        for (group, told) in &self.values {
            let held = || tree.elements(*group).filter(|(section, _)| there[*section as usize]);
            let is_own = held().all(|(_, run)| lies_in(std::slice::from_ref(own), &run));
            let mirrors = held().all(|(_, run)| lies_in(&holds, &run));
            if mirrors && !is_own && value(tree, *group, replica, self)? != *told {
                return Err(differs(held().next().map_or(Section::First, |(section, _)| section)));
            }
        }
        for ((section, from), told) in &self.elements {
            let section = Section::ALL[*section];
            for run in holds.iter().map(|run| run.start.max(*from)..run.end.min(from + told.len())) {
                if run.start < run.end {
                    let mut own = vec![0.0; run.len()];
                    sharding(replica).read(section, run.start, &mut own).map_err(engine)?;
                    let told = &told[run.start - from..run.end - from];
                    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                    if !own.iter().zip(told).all(same) {
                        return Err(differs(section));
                    }
                }
            }
        }
        Ok(())
    }
}

fn differs(section: Section) -> Broke {
    let words = format!("what this rank holds of {} differs from what its owner has", section.name());
    Failure::Engine(words).into()
}

/// What a group comes to: of what this rank has, and of the elements that it heard.
fn value(
    tree: &StateTree,
    group: usize,
    replica: &mut dyn Replica,
    known: &Known,
) -> Result<GroupValue, Broke> {
    let parameters = replica.about().layout.parameters;
    let holds = sharding(replica).holding().elements(parameters);
    tree.value(group, |section, elements, to| {
        if !sharding(replica).holds(section) {
            to.copy_from_slice(&replica.bring_state().map_err(engine)?.section(section)[elements]);
        } else if lies_in(&holds, &elements) {
            sharding(replica).read(section, elements.start, to).map_err(engine)?;
        } else {
            known.read(section, &elements, to);
        }
        Ok(())
    })
}

/// Bits as floats, which are moved and never looked at.
fn as_floats(value: &GroupValue) -> [f32; VALUE] {
    let (words, _) = value.as_chunks::<4>();
    std::array::from_fn(|at| f32::from_le_bytes(words[at]))
}

fn from_floats(floats: &[f32]) -> GroupValue {
    let mut value = GroupValue::default();
    for (to, from) in value.chunks_exact_mut(4).zip(floats) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    value
}

/// Which of the ranks that write has a tensor of a section: the one that owns most of it, of which the others have to send the least.
fn writer(spec: &TensorSpec, cuts: &[usize], writers: &[Rank]) -> Rank {
    let owned = |rank: &Rank| {
        let [start, end] = [cuts[rank.index()], cuts[rank.index() + 1]];
        spec.end().min(end).saturating_sub(spec.offset.max(start))
    };
    let most = writers.iter().map(owned).max().unwrap_or(0);
    if most > 0 {
        return *writers.iter().find(|rank| owned(rank) == most).expect("one of them owns most");
    }
    // None of them owns any: by its place.
    let all = cuts[cuts.len() - 1].max(1);
    let middle = (spec.offset + spec.len / 2).min(all - 1);
    writers[middle * writers.len() / all]
}

/// The tensors that this rank writes of a checkpoint, if it writes.
pub fn tensors(plane: &DataPlane, specs: &[TensorSpec]) -> Option<Vec<usize>> {
    let (rank, cuts) = (plane.membership.rank, &plane.shards.as_ref().expect(SHARDED).cuts);
    let own = |(_, spec): &(usize, &TensorSpec)| writer(spec, cuts, &plane.writers) == rank;
    let writes = plane.writers.contains(&rank);
    writes.then(|| specs.iter().enumerate().filter(own).map(|(tensor, _)| tensor).collect())
}

/// Elements of a section that one rank has and another one writes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    section: Section,
    elements: Range<usize>,
    owner: Rank,
    writer: Rank,
}

/// What has to travel so that everybody has what it writes of these sections, neighbours in one run.
fn sent(plane: &DataPlane, specs: &[TensorSpec], held: HeldSections) -> Vec<Sent> {
    let shards = plane.shards.as_ref().expect(SHARDED);
    let mut all: Vec<Sent> = Vec::new();
    for section in Section::ALL.into_iter().filter(|section| held[*section as usize]) {
        for spec in specs.iter().filter(|spec| spec.section == section.name()) {
            let writer = writer(spec, &shards.cuts, &plane.writers);
            let len = shards.cuts[shards.cuts.len() - 1];
            let has = shards.holders.holding(writer).elements(len);
            for (owner, run) in by_owner(&shards.cuts, &(spec.offset..spec.end())) {
                // Whoever mirrors a run has all of what its owner has.
                if lies_in(&has, &run) {
                    continue;
                }
                let owner = Rank(owner as u32);
                match all.last_mut() {
                    Some(last)
                        if (last.section, last.owner, last.writer) == (section, owner, writer)
                            && last.elements.end == run.start =>
                    {
                        last.elements.end = run.end;
                    }
                    _ => all.push(Sent { section, elements: run, owner, writer }),
                }
            }
        }
    }
    all
}

/// Fills what this rank writes of a checkpoint, if it writes. All ranks call it alike.
///
/// *Blocks* until it has what others own of it.
pub fn fill(
    plane: &mut DataPlane,
    replica: &mut dyn Replica,
    specs: &[TensorSpec],
    mut draft: Option<&mut ShardDraft>,
) -> Result<(), Broke> {
    let (rank, parameters) = (plane.membership.rank, replica.about().layout.parameters);
    let held = held(replica);
    if let Some(draft) = &mut draft {
        for (section, len) in Section::ALL.into_iter().zip(replica.about().state.lengths()) {
            let runs = match held[section as usize] && len > 0 {
                true => sharding(replica).holding().elements(parameters),
                false => std::iter::once(0..len).collect(),
            };
            for run in runs {
                for run in draft.wants(section, &run) {
                    give(replica, draft, section, &run)?;
                }
            }
        }
    }
    let slot = plane.geometry.len;
    for Sent { section, elements, owner, writer } in sent(plane, specs, held) {
        in_pieces(&elements, slot, |piece| {
            let len = piece.len();
            if owner == rank {
                let slot = plane.backend.arena().lease_part(0, 0..len);
                sharding(replica).read(section, piece.start, slot).map_err(engine)?;
            }
            let copy = Op::Copy { sources: &[owner], targets: &[writer], len };
            move_floats(plane.backend.as_mut(), &mut plane.sequence, &copy)?;
            if let Some(draft) = draft.as_mut().filter(|_| writer == rank) {
                draft.add(section, piece.start, plane.backend.arena().lease_part(0, 0..len));
            }
            Ok(())
        })?;
    }
    // A slot of a device is its own again.
    plane.backend.arena().on_device(0);
    Ok(())
}

/// Gives what this rank holds of a tensor that it writes: from where it lies, or as a copy from elsewhere.
fn give(
    replica: &mut dyn Replica,
    draft: &mut ShardDraft,
    section: Section,
    run: &Range<usize>,
) -> Result<(), Broke> {
    if let Some(lent) = sharding(replica).lend(section, run.clone()) {
        draft.lend(section, run.start, lent);
        return Ok(());
    }
    in_pieces(run, PIECE, |piece| {
        let mut values = vec![0.0; piece.len()];
        sharding(replica).read(section, piece.start, &mut values).map_err(engine)?;
        draft.add(section, piece.start, &values);
        Ok(())
    })
}

/// Elements that are read at once.
const PIECE: usize = 256 * 1024;

/// Does something with one piece after the other.
fn in_pieces(
    run: &Range<usize>,
    most: usize,
    mut each: impl FnMut(Range<usize>) -> Result<(), Broke>,
) -> Result<(), Broke> {
    run.clone().step_by(most.max(1)).try_for_each(|at| each(at..run.end.min(at + most.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_engine::StateShape;
    use dtrain_types::{Holders, NodeId, Step};

    fn cuts(world: usize, parameters: usize) -> Vec<usize> {
        Holders::new(&vec![NodeId(0); world], 2).cuts(parameters)
    }

    #[test]
    fn every_group_is_told_by_one_owner_or_element_by_element_in_rounds_that_fit_a_slot() {
        for (parameters, world) in [(5, 3), (100, 8), (20_000, 2), (70_000, 3), (400_000, 5), (400_000, 1)] {
            let shape = StateShape { parameters, stats: 7, moments: 2, kept: 0, averages: true };
            let tree = StateTree::new(Step(3), shape);
            let (cuts, slot) = (cuts(world, parameters), parameters + 7);
            let items = items(&tree, &cuts, slot, &Section::is_of_moments);
            let mut told = vec![0; tree.groups()];
            let mut elements = 0;
            for Item { owner, what } in &items {
                match what {
                    What::Value(group) => {
                        told[*group] += 1;
                        let mut held = tree.elements(*group).filter(|(section, _)| section.is_of_moments());
                        assert!(held.all(|(_, run)| cuts[*owner] <= run.start && run.end <= cuts[owner + 1]));
                    }
                    What::Elements(_, run) => {
                        assert!(cuts[*owner] <= run.start && run.end <= cuts[owner + 1] && !run.is_empty());
                        elements += run.len();
                    }
                }
            }
            assert!(told.iter().all(|count| *count <= 1));
            let own = |group: &usize| told[*group] == 0;
            let missing =
                (0..tree.groups()).filter(own).flat_map(|group| tree.elements(group).collect::<Vec<_>>());
            let missing: usize =
                missing.filter(|(section, _)| section.is_of_moments()).map(|(_, run)| run.len()).sum();
            assert_eq!(elements, missing, "{parameters} parameters, {world} ranks");
            let (mut left, mut rounds) = (&items[..], 0);
            while !left.is_empty() {
                let (taken, cuts) = round(left, slot, world);
                let total: usize = left[..taken].iter().map(Item::len).sum();
                assert!(taken > 0 && cuts.is_sorted() && cuts.len() == world + 1);
                assert!(cuts[world] == total && total <= slot, "{total} floats in a slot of {slot}");
                (left, rounds) = (&left[taken..], rounds + 1);
            }
            assert!(rounds <= 3, "{rounds} rounds of {} items", items.len());
        }
    }

    #[test]
    fn what_a_group_comes_to_is_the_same_after_a_way_as_floats() {
        let value: GroupValue = std::array::from_fn(|at| (at * 37) as u8 | 0xC0);
        assert_eq!(from_floats(&as_floats(&value)), value);
    }

    #[test]
    fn a_tensor_is_written_by_the_rank_that_owns_most_of_it_or_by_its_place_where_nobody_who_writes_does() {
        let cuts = [0, 100, 200, 300];
        let spec = |offset: usize, len: usize| TensorSpec::new("w".to_owned(), &[len], "optimizer.m", offset);
        let all = [0, 1, 2].map(Rank);
        for (offset, len, rank) in
            [(0, 100, 0), (90, 30, 1), (60, 60, 0), (150, 100, 1), (50, 250, 1), (250, 50, 2)]
        {
            assert_eq!(writer(&spec(offset, len), &cuts, &all), Rank(rank), "{offset}, {len}");
        }
        assert_eq!(writer(&spec(250, 50), &cuts, &[Rank(0), Rank(1)]), Rank(1));
        assert_eq!(writer(&spec(210, 80), &cuts, &[Rank(0)]), Rank(0));
    }
}

//! An arena that came from elsewhere gives an error, never a crash.

use dtrain_collective::{Geometry, Reduce};
use dtrain_oracle::conformance::membership;
use dtrain_transport::{ArenaFile, ShmBackend, ShmError};
use dtrain_types::{MicroRange, WorldSize, cut_evenly};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

const GEOMETRY: Geometry = Geometry { len: 100, root_slots: 1, scratch_slots: 1 };

fn forged(words: &[u64], size: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("forged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&fd, size).expect("sized");
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rustix::io::pwrite(&fd, &bytes, 0).expect("written");
    fcntl_add_seals(&fd, seals).expect("sealed");
    fd
}

/// The header and the size of a good arena for two ranks.
fn good() -> ([u64; 7], u64) {
    let file = ArenaFile::create(WorldSize(2), GEOMETRY).expect("a memfd");
    let mut bytes = [0u8; 56];
    rustix::io::pread(&file, &mut bytes, 0).expect("read");
    let words = std::array::from_fn(|i| u64::from_le_bytes(bytes[i * 8..][..8].try_into().expect("eight")));
    (words, rustix::fs::fstat(&file).expect("a size").st_size as u64)
}

#[test]
fn an_arena_survives_the_way_through_a_descriptor() {
    let file = ArenaFile::create(WorldSize(2), GEOMETRY).expect("a memfd");
    let copy = ArenaFile::from_fd(file.try_clone().expect("a copy").into_fd()).expect("it is an arena");
    assert_eq!((copy.world(), copy.geometry()), (WorldSize(2), GEOMETRY));
    assert_eq!(copy.map().expect("mapped").geometry(), GEOMETRY);
}

#[test]
fn a_forged_header_is_refused_with_the_field_that_is_wrong() {
    let (words, size) = good();
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    assert!(ArenaFile::from_fd(forged(&words, size, sealed)).is_ok());
    for (field, value) in [(0, 1), (1, 99), (2, 3), (2, u64::MAX), (3, 101_000), (4, 900), (5, 900)] {
        let mut wrong = words;
        wrong[field] = value;
        let refused = ArenaFile::from_fd(forged(&wrong, size, sealed));
        assert!(matches!(refused, Err(ShmError::NotAnArena { .. })), "field {field}: {refused:?}");
    }
    for (field, value) in [(2, 0), (3, u64::MAX), (3, 1 << 61), (4, 0), (4, u64::MAX), (5, u64::MAX)] {
        let mut wrong = words;
        wrong[field] = value;
        let refused = ArenaFile::from_fd(forged(&wrong, size, sealed));
        assert!(matches!(refused, Err(ShmError::TooLarge { .. })), "field {field}: {refused:?}");
    }
}

#[test]
fn a_file_that_is_short_or_could_shrink_or_is_no_memfd_is_refused() {
    let (words, size) = good();
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let short = ArenaFile::from_fd(forged(&words, size - 4096, sealed));
    assert!(matches!(short, Err(ShmError::NotAnArena { what: "the file's size", .. })), "{short:?}");
    assert!(matches!(ArenaFile::from_fd(forged(&[], 8, sealed)), Err(ShmError::NotAnArena { .. })));
    let soft = ArenaFile::from_fd(forged(&words, size, SealFlags::empty()));
    assert!(matches!(soft, Err(ShmError::NotSealed)), "{soft:?}");
    let file = std::fs::File::open("/dev/null").expect("there is one");
    assert!(matches!(ArenaFile::from_fd(file.into()), Err(ShmError::System { .. })));
}

#[test]
fn nobody_can_shrink_an_arena_under_its_readers() {
    let file = ArenaFile::create(WorldSize(2), GEOMETRY).expect("a memfd");
    assert_eq!(ftruncate(&file, 0), Err(rustix::io::Errno::PERM));
}

#[test]
fn a_generation_that_does_not_fit_or_a_rank_that_is_taken_is_refused() {
    let ranges = cut_evenly(4, 2);
    let mapping = ArenaFile::create(WorldSize(2), GEOMETRY).and_then(|file| file.map()).expect("an arena");
    let join = |generation, rank, ranges: &[MicroRange], counts: &[u32]| {
        ShmBackend::new(mapping.clone(), membership(generation, rank, ranges), Reduce::Exact, counts)
    };
    let too_many = join(1, 0, &cut_evenly(4, 3), &[4]);
    assert!(matches!(too_many, Err(ShmError::TooSmall { world: WorldSize(3), .. })));
    let three_roots = [MicroRange { lo: 0, hi: 7 }, MicroRange { lo: 7, hi: 8 }];
    assert!(matches!(join(1, 0, &three_roots, &[8]), Err(ShmError::TooSmall { .. })));
    let first = join(1, 0, &ranges, &[4]).expect("free");
    assert!(matches!(join(1, 0, &ranges, &[4]), Err(ShmError::RankTaken { .. })));
    assert!(
        matches!(join(2, 0, &ranges, &[4]), Err(ShmError::RankTaken { .. })),
        "the old one still lends it"
    );
    drop(first);
    assert!(
        matches!(join(1, 0, &ranges, &[4]), Err(ShmError::RankTaken { .. })),
        "a generation is used once"
    );
    assert!(join(2, 0, &ranges, &[4]).is_ok());
}

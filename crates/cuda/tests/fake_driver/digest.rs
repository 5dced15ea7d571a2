//! The run of the example `digest_nccl` on the fake library over the fake driver, on lazy streams too: one digest, whoever computes
//! what.

use crate::stand_in::build::compiler;
use crate::support::{Fake, child, gpu, is_child, library_path};
use dtrain_nccl::open;

#[path = "../on_gpu/digest.rs"]
pub mod run;

#[test]
fn one_two_three_and_four_ranks_on_one_gpu_train_to_one_digest() {
    if compiler().is_some() {
        let driver = library_path();
        let driver = driver.to_str().expect("a path of this machine");
        let said = child("digest::train_by_several", &[("FAKE_NCCL_DRIVER", driver)]);
        assert!(said.contains("one digest"), "{said}");
    }
}

/// What the child of the test above does: alone in its process, because memory that is given back makes lazy streams work, other
/// tests wait for theirs not to, and the fake library reads a variable once.
#[test]
fn train_by_several() {
    if is_child()
        && let Some(gpu) = gpu()
    {
        let library = open(&[library_path().with_file_name("libfake_nccl.so")]);
        let (library, gpus) = (library.expect("cargo builds it beside this test"), [gpu]);
        let digest = |world| run::digest(&gpus, &library, world);
        let wanted = digest(1);
        for world in [2, 3, 4] {
            assert_eq!(digest(world), wanted, "{world} ranks");
        }
        let fake = Fake::new();
        let lazy = fake.lazy();
        assert_eq!(digest(2), wanted, "on lazy streams");
        drop(lazy);
        let ranges = run::ranges(4);
        let ranks = run::meet(&gpus, &library, &ranges);
        let freed = || fake.calls("cuMemFree_v2") + fake.calls("cuMemFreeHost");
        let before = freed();
        let (digest, _ranks) = run::on_threads(ranks, &ranges);
        assert_eq!(freed(), before, "nobody frees memory while a peer may be in a collective");
        assert_eq!(digest, wanted);
        assert_eq!(fake.wrong(), "");
        println!("\none digest");
    }
}

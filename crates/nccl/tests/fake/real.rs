//! The real library, where there is one: it loads, and tells its version, an id and its errors without any GPU.
//!
//! It is never downloaded here: `crates/nccl/fetch-nccl.sh` fetches it and says how to name it in `DTRAIN_TEST_NCCL`.

use dtrain_nccl::{Forming, Function, NcclError, open};
use dtrain_types::{Rank, WorldSize};
use std::time::Duration;

#[test]
fn a_real_library_tells_its_version_an_id_and_its_errors() {
    let named = std::env::var_os("DTRAIN_TEST_NCCL");
    let path = named.as_deref().unwrap_or("libnccl.so.2".as_ref());
    let library = match open(&[path.into()]) {
        Ok(library) => library,
        Err(error) => {
            assert!(named.is_none(), "{error}");
            return println!("skipped: no real NCCL is here, and DTRAIN_TEST_NCCL names none ({error})");
        }
    };
    println!("tried {library:?}");
    assert!(library.version().0 >= 21400, "{}", library.version());
    for function in Function::ALL {
        println!("{function}: {}", library.has(*function));
    }
    let (one, other) = (library.unique_id().expect("an id"), library.unique_id().expect("an id"));
    assert_ne!(one, other);
    // Without a driver this fails, at once or behind our back; with one, a rank alone is a communicator.
    let begun = Forming::begin(&library, &one, Rank(0), WorldSize(1));
    match begun.and_then(|forming| forming.wait(Duration::from_secs(60))) {
        Ok(alone) => assert_eq!(alone.world(), 1),
        Err(error) => {
            println!("{error}");
            let NcclError::Failed { code, meaning, .. } = &error else { panic!("{error}") };
            assert!(*code == 1 && meaning.contains("cuda"), "{error}");
        }
    }
}

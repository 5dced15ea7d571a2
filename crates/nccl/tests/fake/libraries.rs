//! Libraries that are not there, no library, old, or lack a function.

use crate::support::{LONG, child, communicators, is_child, library, library_path};
use dtrain_nccl::{Forming, Function, NcclError, NcclVersion, open};
use dtrain_types::{Rank, WorldSize};
use std::path::{Path, PathBuf};

/// A copy of the fake library in whose table of symbols one function has another name.
fn without(function: Function, folder: &Path) -> PathBuf {
    let mut bytes = std::fs::read(library_path()).expect("the fake library");
    let name = [b"\0", function.to_string().as_bytes(), b"\0"].concat();
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
    assert!(!places.is_empty(), "the library has no {function}");
    places.iter().for_each(|at| bytes[at + 1] = b'x');
    let path = folder.join(format!("lib-without-{function}.so"));
    std::fs::write(&path, bytes).expect("a temporary file");
    path
}

#[test]
fn the_first_candidate_that_is_a_library_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let junk = folder.path().join("libnccl.so.2");
    std::fs::write(&junk, "no library").expect("a temporary file");
    let library = open(&[folder.path().join("absent"), junk, library_path()]).expect("the third one");
    assert_eq!(library.path(), library_path());
    assert_eq!(library.version(), NcclVersion(23203));
    assert!(Function::ALL.iter().all(|function| library.has(*function)));
}

#[test]
fn what_was_tried_is_told_with_the_reason_for_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let (absent, junk) = (folder.path().join("absent.so"), folder.path().join("junk.so"));
    std::fs::write(&junk, "no library").expect("a temporary file");
    // A good library, but of something else.
    let other = PathBuf::from("libc.so.6");
    let error = open(&[absent.clone(), junk.clone(), other]).expect_err("none of them");
    let NcclError::NotFound { tried } = &error else { panic!("{error}") };
    assert_eq!((&tried[0].0, &tried[1].0), (&absent, &junk));
    assert!(tried[2].1.contains("no ncclGetVersion"), "{tried:?}");
    let text = error.to_string();
    for word in ["absent.so", "junk.so", "libc.so.6", "\nhint: install NCCL"] {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
}

#[test]
fn a_library_without_a_function_that_is_needed_is_refused_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    for function in Function::ALL.iter().filter(|function| function.is_required()) {
        let error = open(&[without(*function, folder.path())]).expect_err("it is of no use");
        let text = error.to_string();
        match function {
            Function::GetVersion => assert!(matches!(error, NcclError::NotFound { .. }), "{text}"),
            _ => assert!(text.contains(&format!("has no {function}, which NCCL has since")), "{text}"),
        }
    }
}

#[test]
fn without_the_function_for_its_last_error_there_are_fewer_words_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let optional = Function::ALL.iter().filter(|function| !function.is_required());
    assert_eq!(optional.collect::<Vec<_>>(), [&Function::GetLastError]);
    let library = open(&[without(Function::GetLastError, folder.path())]).expect("the rest is there");
    let id = library.unique_id().expect("an id");
    let error = Forming::begin(&library, &id, Rank(9), WorldSize(1)).expect_err("no such rank");
    assert!(matches!(error, NcclError::Failed { last, .. } if last.is_empty()));
}

#[test]
fn what_the_library_says_of_an_error_is_in_it() {
    let library = library();
    let id = library.unique_id().expect("an id");
    let error = Forming::begin(&library, &id, Rank(7), WorldSize(3)).expect_err("no such rank");
    let text = error.to_string();
    assert!(
        text.starts_with("ncclCommInitRankConfig failed: invalid argument (code 4): there is no rank 7 of 3")
    );
    assert!(text.contains("\nhint: "), "{text}");
    let mut made_up = id;
    made_up.0[0] ^= 1;
    let forming = Forming::begin(&library, &made_up, Rank(0), WorldSize(1)).expect("begun");
    let error = forming.wait(LONG).expect_err("nobody made this id");
    assert!(error.to_string().contains("no unique id of this library"), "{error}");
    drop(communicators(1));
}

/// What the child of the next test does.
#[test]
fn begin_where_calls_block() {
    if is_child() {
        let library = library();
        let id = library.unique_id().expect("an id");
        let refused = Forming::begin(&library, &id, Rank(0), WorldSize(2)).expect_err("it would hang");
        println!("\nrefused {}", refused.to_string().replace('\n', " "));
    }
}

#[test]
fn an_environment_in_which_every_call_blocks_is_refused() {
    let mut command = child("libraries::begin_where_calls_block");
    let run = command.env("NCCL_COMM_BLOCKING", "1").output().expect("a child");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        said.contains("refused NCCL_COMM_BLOCKING=1 makes every call") && said.contains("hint: unset"),
        "{said}"
    );
}

/// What the child of the next test does.
#[test]
fn say_which_version_this_is() {
    if is_child() {
        println!("\nversion {}", library().version());
    }
}

#[test]
fn an_old_library_says_so() {
    let mut command = child("libraries::say_which_version_this_is");
    let run = command.env("FAKE_NCCL_VERSION", "21403").output().expect("a child");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(said.contains("version 2.14.3"), "{said}");
}

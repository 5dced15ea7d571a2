//! Graphs: two products one behind the other, told by descriptors, and what is refused of them.

use crate::caller::{LIBRARY, OK};
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnDataType_t as Numbers, cudnnStatus_t as Status,
};
use std::ptr::null_mut;
use std::sync::LazyLock;

const BAD: Status = Status::CUDNN_STATUS_BAD_PARAM;
const UNSUPPORTED: Status = Status::CUDNN_STATUS_NOT_SUPPORTED;
const F32: u32 = Numbers::CUDNN_DATA_FLOAT as u32;
const TENSOR: Kind = Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR;
const PRODUCT: Kind = Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
const GRAPH: Kind = Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
const ENGINE: Kind = Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR;
const HEURISTICS: Kind = Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;

type Handle = sys::cudnnBackendDescriptor_t;

fn new(kind: Kind) -> Handle {
    LazyLock::force(&LIBRARY);
    let mut made = null_mut();
    // SAFETY: there is room for one.
    assert_eq!(unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut made) }, OK);
    made
}

/// *Panics* unless values are of the size that the type has.
fn set<T>(on: Handle, name: Name, what: Type, values: &[T]) -> Status {
    // SAFETY: there are so many values.
    unsafe { sys::cudnnBackendSetAttribute(on, name, what, values.len() as i64, values.as_ptr().cast()) }
}

fn finish(on: Handle) -> Status {
    // SAFETY: it takes a handle.
    unsafe { sys::cudnnBackendFinalize(on) }
}

fn read<T>(on: Handle, name: Name, what: Type, to: &mut [T]) -> (Status, i64) {
    let mut found = 0;
    // SAFETY: there is room for so many.
    let status = unsafe {
        let most = to.len() as i64;
        sys::cudnnBackendGetAttribute(on, name, what, most, &mut found, to.as_mut_ptr().cast())
    };
    (status, found)
}

/// A finished descriptor of others.
fn of(kind: Kind, all: &[(Name, &[Handle])]) -> (Handle, Status) {
    let made = new(kind);
    for (name, of) in all {
        assert_eq!(set(made, *name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, of), OK);
    }
    (made, finish(made))
}

/// A matrix of f32, row by row.
fn tensor(id: i64, [rows, columns]: [i64; 2], is_virtual: bool) -> Handle {
    let made = new(TENSOR);
    assert_eq!(set(made, Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[F32]), OK);
    let (sizes, strides) = ([1, 1, rows, columns], [rows * columns, rows * columns, columns, 1]);
    assert_eq!(set(made, Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64, &sizes), OK);
    assert_eq!(finish(made), BAD, "without strides");
    assert_eq!(set(made, Name::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64, &strides), OK);
    assert_eq!(set(made, Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[id]), OK);
    assert_eq!(set(made, Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[is_virtual]), OK);
    assert_eq!(finish(made), OK);
    made
}

fn product(a: Handle, b: Handle, c: Handle) -> Handle {
    let (told, status) = of(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR, &[]);
    assert_eq!(status, OK);
    let all: [(Name, &[Handle]); 4] = [
        (Name::CUDNN_ATTR_OPERATION_MATMUL_DESC, &[told]),
        (Name::CUDNN_ATTR_OPERATION_MATMUL_ADESC, &[a]),
        (Name::CUDNN_ATTR_OPERATION_MATMUL_BDESC, &[b]),
        (Name::CUDNN_ATTR_OPERATION_MATMUL_CDESC, &[c]),
    ];
    let (made, status) = of(PRODUCT, &all);
    assert_eq!(status, OK);
    made
}

fn graph(handle: sys::cudnnHandle_t, operations: &[Handle]) -> (Handle, Status) {
    let made = new(GRAPH);
    let descriptors = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    assert_eq!(set(made, Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, descriptors, operations), OK);
    assert_eq!(set(made, Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle]), OK);
    (made, finish(made))
}

fn engine(graph: Handle, number: i64) -> (Handle, Status) {
    let made = new(ENGINE);
    let descriptors = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    assert_eq!(set(made, Name::CUDNN_ATTR_ENGINE_OPERATION_GRAPH, descriptors, &[graph]), OK);
    assert_eq!(set(made, Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64, &[number]), OK);
    (made, finish(made))
}

#[test]
fn two_products_are_done_as_they_are_told_and_half_of_a_graph_is_none() {
    let mut handle = null_mut();
    LazyLock::force(&LIBRARY);
    // SAFETY: there is room for one.
    assert_eq!(unsafe { sys::cudnnCreate(&mut handle) }, OK);
    // a [2, 3] by b [3, 2], by c [2, 2].
    let (a, b, c) = (tensor(1, [2, 3], false), tensor(2, [3, 2], false), tensor(3, [2, 2], false));
    let (between, y) = (tensor(4, [2, 2], true), tensor(5, [2, 2], false));
    let all = [product(a, b, between), product(between, c, y)];
    assert_eq!(graph(handle, &all[..1]).1, UNSUPPORTED, "one product is no attention");
    let (graph, status) = graph(handle, &all);
    assert_eq!(status, OK);
    let descriptors = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    assert_eq!(set(graph, Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, descriptors, &all), BAD, "it was finished");

    // What is offered, with notes and settings.
    let mode = sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A as u32;
    let asked = new(HEURISTICS);
    assert_eq!(set(asked, Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, descriptors, &[graph]), OK);
    assert_eq!(set(asked, Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode]), OK);
    let mut offers: Vec<Handle> = (0..8).map(|_| new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)).collect();
    assert_eq!(
        read(asked, Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, descriptors, &mut offers).0,
        BAD,
        "not finished"
    );
    assert_eq!(finish(asked), OK);
    assert_eq!(read(asked, Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, descriptors, &mut offers), (OK, 5));
    let mut of_first = [new(ENGINE)];
    assert_eq!(read(offers[0], Name::CUDNN_ATTR_ENGINECFG_ENGINE, descriptors, &mut of_first), (OK, 1));
    let (mut notes, what) = ([0u32; 4], Type::CUDNN_TYPE_NUMERICAL_NOTE);
    assert_eq!(read(of_first[0], Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, what, &mut notes), (OK, 1));
    assert_eq!(notes[0], 4, "other bits each time");

    // What an engine does; there is no engine 0, nor one without its graph.
    assert_eq!(engine(graph, 0).1, UNSUPPORTED);
    assert_eq!(engine(asked, 1).1, BAD);
    let (engine, status) = engine(graph, 1);
    assert_eq!(status, OK);
    let (configuration, status) =
        of(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &[(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &[engine])]);
    assert_eq!(status, OK);
    let told: [(Name, &[Handle]); 1] = [(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[configuration])];
    let (plan, status) = of(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &told);
    assert_eq!(status, OK);
    #[repr(align(16))]
    struct Matrix<const N: usize>([f32; N]);
    let (a, b) = (Matrix([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), Matrix([1.0, 0.0, 0.0, 1.0, 1.0, 1.0]));
    let (c, mut y) = (Matrix([2.0, 0.0, 1.0, 3.0]), Matrix([0.0f32; 4]));
    let at = [a.0.as_ptr(), b.0.as_ptr(), c.0.as_ptr(), y.0.as_mut_ptr().cast_const()];
    let run = |ids: &[i64]| {
        let pack = new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
        let pointers = Type::CUDNN_TYPE_VOID_PTR;
        assert_eq!(set(pack, Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, ids), OK);
        assert_eq!(set(pack, Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers, &at), OK);
        assert_eq!(set(pack, Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, pointers, &[0usize]), OK);
        assert_eq!(finish(pack), OK);
        // SAFETY: the matrices lie there.
        unsafe { sys::cudnnBackendExecute(handle, plan, pack) }
    };
    assert_eq!(run(&[1, 2, 3]), BAD, "nothing is said of the result");
    assert_eq!(run(&[1, 2, 3, 5]), OK);
    // SAFETY: the library has written it, through an address that the compiler does not follow.
    let found = unsafe { std::ptr::read_volatile(&y.0) };
    // [4 5; 10 11] by [2 0; 1 3].
    assert_eq!(found, [13.0, 15.0, 31.0, 33.0]);
}

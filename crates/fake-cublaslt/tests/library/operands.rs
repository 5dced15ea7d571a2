//! Matrices of tests, made up and with room between columns, and the product of two by f64.

use cudarc::cublaslt::sys::{self, cudaDataType as Type};
use dtrain_fake_common::trial::about_zero;
use half::{bf16, f16};

/// Lies between columns, and must be there in the end.
const BETWEEN: u8 = 0x5a;

/// A matrix by columns, in memory that is aligned to 16 bytes.
#[derive(Clone, PartialEq)]
pub struct Operand {
    memory: Vec<u128>,
    pub numbers: Type,
    pub rows: usize,
    pub columns: usize,
    pub pitch: usize,
}

impl Operand {
    /// Numbers about zero that are never the same, in columns that are so far apart.
    pub fn new(numbers: Type, [rows, columns]: [usize; 2], pitch: usize, seed: u32) -> Self {
        let mut it = Self::holding(numbers, [rows, columns], pitch, 0.0);
        let places = (0..columns).flat_map(|column| (0..rows).map(move |row| (row, column)));
        places.zip(about_zero(seed)).for_each(|((row, column), value)| it.put(row, column, value));
        it
    }

    /// The same number everywhere.
    pub fn holding(numbers: Type, [rows, columns]: [usize; 2], pitch: usize, value: f32) -> Self {
        let words = (pitch * columns * Self::size(numbers)).div_ceil(16);
        let memory = vec![u128::from_ne_bytes([BETWEEN; 16]); words];
        let mut it = Self { memory, numbers, rows, columns, pitch };
        (0..columns).for_each(|column| (0..rows).for_each(|row| it.put(row, column, value)));
        it
    }

    pub fn size(numbers: Type) -> usize {
        if numbers == Type::CUDA_R_32F { 4 } else { 2 }
    }

    pub fn address(&mut self) -> usize {
        self.memory.as_mut_ptr() as usize
    }

    fn bytes(&self, row: usize, column: usize) -> [u8; 4] {
        let (size, at) = (Self::size(self.numbers), column * self.pitch + row);
        let mut bytes = [0; 4];
        for (place, byte) in bytes[..size].iter_mut().enumerate() {
            *byte = self.memory[(at * size + place) / 16].to_ne_bytes()[(at * size + place) % 16];
        }
        bytes
    }

    pub fn get(&self, row: usize, column: usize) -> f32 {
        let bytes @ [low, high, ..] = self.bytes(row, column);
        match self.numbers {
            Type::CUDA_R_32F => f32::from_ne_bytes(bytes),
            Type::CUDA_R_16F => f16::from_ne_bytes([low, high]).to_f32(),
            _ => bf16::from_ne_bytes([low, high]).to_f32(),
        }
    }

    fn put(&mut self, row: usize, column: usize, value: f32) {
        let bytes = match self.numbers {
            Type::CUDA_R_32F => value.to_ne_bytes().to_vec(),
            Type::CUDA_R_16F => f16::from_f32(value).to_ne_bytes().to_vec(),
            _ => bf16::from_f32(value).to_ne_bytes().to_vec(),
        };
        for (place, byte) in bytes.iter().enumerate() {
            let at = (column * self.pitch + row) * bytes.len() + place;
            let mut word = self.memory[at / 16].to_ne_bytes();
            word[at % 16] = *byte;
            self.memory[at / 16] = u128::from_ne_bytes(word);
        }
    }

    /// The bits of all its numbers.
    pub fn bits(&self) -> Vec<[u8; 4]> {
        let places = (0..self.columns).flat_map(|column| (0..self.rows).map(move |row| (row, column)));
        places.map(|(row, column)| self.bytes(row, column)).collect()
    }

    /// Whether nothing was written between columns.
    pub fn is_whole(&self) -> bool {
        let fresh = [BETWEEN; 4];
        let between =
            (0..self.columns).flat_map(|column| (self.rows..self.pitch).map(move |row| (row, column)));
        let size = Self::size(self.numbers);
        between.into_iter().all(|(row, column)| self.bytes(row, column)[..size] == fresh[..size])
    }
}

/// What is to be computed.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub shape: [usize; 3],
    pub turned: [bool; 2],
    pub read: Type,
    pub written: Type,
    /// By how much columns are further apart than they are long.
    pub apart: usize,
    pub alpha: f32,
    pub beta: f32,
    pub epilogue: sys::cublasLtEpilogue_t,
}

/// The operands of a case.
#[derive(Clone)]
pub struct Operands {
    pub a: Operand,
    pub b: Operand,
    pub c: Operand,
    pub d: Operand,
    pub bias: Operand,
}

impl Case {
    pub fn f32(shape: [usize; 3]) -> Self {
        let (read, written) = (Type::CUDA_R_32F, Type::CUDA_R_32F);
        let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT;
        Self { shape, turned: [false; 2], read, written, apart: 0, alpha: 1.0, beta: 0.0, epilogue }
    }

    pub fn has(&self, of_epilogue: u32) -> bool {
        self.epilogue as u32 & of_epilogue != 0
    }

    /// C is NaN where nothing is to be read of it.
    pub fn operands(&self) -> Operands {
        let [m, n, k] = self.shape;
        let pitch = |rows: usize| rows + self.apart;
        let of = |rows: usize, columns: usize, turned: bool, seed| {
            let shape = if turned { [columns, rows] } else { [rows, columns] };
            Operand::new(self.read, shape, pitch(shape[0]), seed)
        };
        let c = match self.beta {
            0.0 => Operand::holding(self.written, [m, n], pitch(m), f32::NAN),
            _ => Operand::new(self.written, [m, n], pitch(m), 3),
        };
        Operands {
            a: of(m, k, self.turned[0], 1),
            b: of(k, n, self.turned[1], 2),
            c,
            d: Operand::holding(self.written, [m, n], pitch(m), f32::NAN),
            bias: Operand::new(self.written, [m, 1], m, 4),
        }
    }

    /// Compares D with the product by f64: it may be off by rounding, of each sum and of the result.
    pub fn judge(&self, operands: &Operands) {
        let Operands { a, b, c, d, bias } = operands;
        let [m, n, k] = self.shape;
        // Half of the last bit; the least numbers of f16 have fewer.
        let (rounding, least) = match self.written {
            Type::CUDA_R_32F => (0.0, 0.0),
            Type::CUDA_R_16F => (2f64.powi(-11), 2f64.powi(-25)),
            _ => (2f64.powi(-8), 0.0),
        };
        let at = |of: &Operand, turned, row, column| {
            f64::from(if turned { of.get(column, row) } else { of.get(row, column) })
        };
        for (row, column) in (0..n).flat_map(|column| (0..m).map(move |row| (row, column))) {
            let terms = (0..k).map(|i| at(a, self.turned[0], row, i) * at(b, self.turned[1], i, column));
            let (mut sum, mut size) =
                terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            sum *= f64::from(self.alpha);
            size *= f64::from(self.alpha.abs());
            let mut add = |term: f64| {
                sum += term;
                size += term.abs();
            };
            if self.beta != 0.0 {
                add(f64::from(self.beta) * f64::from(c.get(row, column)));
            }
            if self.has(4) {
                add(f64::from(bias.get(row, 0)));
            }
            let want = if self.has(2) { sum.max(0.0) } else { sum };
            let got = f64::from(d.get(row, column));
            let may =
                size * (k as f64 + 4.0) * 2f64.powi(-24) * (1.0 + rounding) + want.abs() * rounding + least;
            assert!((got - want).abs() <= may, "{self:?}: {got} and not {want} at {row}, {column}");
        }
        assert!(d.is_whole(), "{self:?}: something was written between columns");
    }
}

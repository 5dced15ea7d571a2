//! Every kernel: its file, its threads and its parameters.
//!
//! A kernel's parameters are a word with a letter for each, in order:
//!
//! | | a pointer to memory that is read / written | | a value |
//! |---|---|---|---|
//! | `f` `F` | `float` | `u` | `u32` |
//! | `i` `I` | `u32` | `l` | `u64` |
//! | `h` `H` | `u16`, the bits of a half | `r` | `float` |
//! | `d` `D` | `double` | `C` `V` `P` | the shape of a convolution over images, over volumes, of a pooling |
//!
//! The tests compare this table with the sources. A file of kernels over halves is there twice, behind `bf16.cuh` and behind
//! `f16.cuh`: they say what is different, and put the kind into the names of the kernels.
//!
//! This file does not know what a kernel is for, or which grid it wants.

/// A text that stands before kernels.
#[derive(Debug)]
pub struct SourcePart {
    /// Its name in `kernels/parts`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// A file of kernels: one idea.
#[derive(Debug)]
pub struct File {
    /// Its name in `kernels`. Where it is there for two kinds of halves, they share it.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// What has to stand before it, in order.
    pub parts: &'static [SourcePart],
}

/// A number that is another one when a kernel is: the beginning of a digest of all sources.
#[must_use]
pub fn revision() -> u32 {
    let mut hasher = blake3::Hasher::new();
    FILES.iter().for_each(|file| {
        hasher.update(file.source().as_bytes());
    });
    let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name, the same in the source and in what is compiled from it.
    pub name: &'static str,
    /// Where it is written.
    pub file: &'static File,
    /// Threads of a block: a constant of the source.
    pub threads: u32,
    /// Its parameters.
    pub parameters: &'static str,
}

impl File {
    /// The whole text that is compiled. Messages name the places in the files.
    #[must_use]
    pub fn source(&self) -> String {
        let mut source = String::new();
        for (name, text) in
            self.parts.iter().map(|part| (part.name, part.text)).chain([(self.name, self.text)])
        {
            source.push_str(&format!("#line 1 \"{name}\"\n{text}"));
        }
        source
    }

    /// Its kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &'static Kernel> {
        KERNELS.iter().copied().filter(move |kernel| std::ptr::eq(kernel.file, self))
    }
}

macro_rules! part {
    ($name:literal) => {
        SourcePart { name: $name, text: include_str!(concat!("../kernels/parts/", $name)) }
    };
}

macro_rules! kernels {
    ($($file:ident $file_name:literal [$($part:literal),*] { $($kernel:ident $name:literal $threads:literal $parameters:literal)* })*) => {
        $(
            static $file: File = File {
                name: $file_name,
                text: include_str!(concat!("../kernels/", $file_name)),
                parts: &[part!("prelude.cuh"), $(part!($part)),*],
            };
            $(
                #[doc = concat!("`", $name, "` of `kernels/", $file_name, "`.")]
                pub static $kernel: Kernel =
                    Kernel { name: $name, file: &$file, threads: $threads, parameters: $parameters };
            )*
        )*
        /// Every file of kernels.
        pub static FILES: &[&File] = &[$(&$file),*];
        /// Every kernel, file by file.
        pub static KERNELS: &[&Kernel] = &[$($(&$kernel),*),*];
    };
}

kernels! {
    FILL_CU "fill.cu" [] {
        FILL "fill" 256 "Frl"
        COPY "copy" 256 "fFl"
    }
    ADD_CU "add.cu" [] {
        ADD "add" 256 "ffFl"
        ADD_TO "add_to" 256 "fFl"
    }
    RELU_CU "relu.cu" [] {
        RELU "relu" 256 "fFl"
        RELU_GRADIENT "relu_gradient" 256 "fFl"
    }
    GELU_CU "gelu.cu" ["math.cuh"] {
        GELU "gelu" 256 "fFl"
        GELU_GRADIENT "gelu_gradient" 256 "fFl"
        GELU_TANH "gelu_tanh" 256 "fFl"
        GELU_TANH_GRADIENT "gelu_tanh_gradient" 256 "fFl"
    }
    BIAS_ACTIVATION_CU "bias_activation.cu" [] {
        BIAS_ACTIVATION "bias_activation" 256 "fFluuu"
    }
    DROPOUT_CU "dropout.cu" [] {
        DROPOUT "dropout" 256 "fFluuuuuur"
    }
    BF16_CU "half.cu" ["bf16.cuh"] {
        TO_BF16 "to_bf16" 256 "fHl"
        FROM_BF16 "from_bf16" 256 "hFl"
    }
    F16_CU "half.cu" ["f16.cuh"] {
        TO_F16 "to_f16" 256 "fHl"
        FROM_F16 "from_f16" 256 "hFl"
    }
    UPDATE_CU "update.cu" [] {
        ADAMW "adamw" 256 "fFFFlrrrrrrr"
        SGD "sgd" 256 "fFlrrr"
        SGD_MOMENTUM "sgd_momentum" 256 "fFFlrrrruu"
        BLEND "blend" 256 "fFlrr"
    }
    FINITE_CU "finite.cu" [] {
        FINITE_PARTS "finite_parts" 256 "fIl"
        FINITE_ALL "finite_all" 256 "iIu"
    }
    SQUARES_CU "squares.cu" [] {
        SQUARE_PARTS "square_parts" 256 "fDlr"
        SUM_IN_ORDER "sum_in_order" 256 "dDu"
    }
    SUM_TREE_CU "sum_tree.cu" [] {
        SUM_TREE "sum_tree" 256 "iiiuul"
    }
    COLUMN_SUMS_CU "column_sums.cu" ["sums.cuh"] {
        COLUMN_PARTS "column_parts" 256 "fFuu"
        PLANE_PARTS "plane_parts" 256 "fFuuu"
        SUM_PARTS "sum_parts" 256 "fFlul"
    }
    LAYER_NORM_CU "layer_norm.cu" ["sums.cuh"] {
        LAYER_NORM "layer_norm" 256 "fffFFuu"
        LAYER_NORM_GRADIENT "layer_norm_gradient" 256 "ffffFuu"
        LAYER_NORM_PARTS "layer_norm_parts" 256 "fffFuu"
    }
    BATCH_NORM_CU "batch_norm.cu" ["sums.cuh"] {
        BATCH_NORM_PARTS "batch_norm_parts" 256 "fDuuu"
        BATCH_NORM_STATISTICS "batch_norm_statistics" 256 "dFFuuur"
        BATCH_NORM "batch_norm" 256 "ffffFuu"
        BATCH_NORM_BY "batch_norm_by" 256 "ffffFuur"
        BATCH_NORM_GRADIENT_PARTS "batch_norm_gradient_parts" 256 "fffDuuu"
        BATCH_NORM_GRADIENT_SUMS "batch_norm_gradient_sums" 256 "dFFuu"
        BATCH_NORM_GRADIENT "batch_norm_gradient" 256 "ffffffFuuu"
    }
    LOSSES_CU "losses.cu" ["math.cuh", "sums.cuh"] {
        CROSS_ENTROPY "cross_entropy" 256 "fifFDIuruur"
        SQUARED_ERROR "squared_error" 256 "ffFDIur"
        LOSS_SUMS "loss_sums" 256 "diDIu"
        ARG_MAX "arg_max" 256 "fIu"
    }
    POOLING_CU "pooling.cu" [] {
        MAX_POOL "max_pool" 256 "fFIP"
        MAX_POOL_GRADIENT "max_pool_gradient" 256 "ifFP"
        AVG_POOL "avg_pool" 256 "fFP"
        AVG_POOL_GRADIENT "avg_pool_gradient" 256 "fFP"
    }
    EMBEDDING_CU "embedding.cu" [] {
        EMBEDDING "embedding" 256 "iffFluuu"
        EMBEDDING_ORDER "embedding_order" 256 "iIu"
        EMBEDDING_GRADIENT "embedding_gradient" 256 "iifFuuu"
        PLACES_GRADIENT "places_gradient" 256 "fFluuu"
    }
    PRODUCT_CU "product.cu" ["math.cuh", "tile.cuh"] {
        PRODUCT "product" 256 "fffFuuullllluu"
        LINEAR_GELU "linear_gelu" 256 "fffFFuuuu"
    }
    CONV_CU "conv.cu" ["tile.cuh", "conv.cuh"] {
        CONV2D "conv2d" 256 "fffFCu"
        CONV2D_INPUT_GRADIENT "conv2d_input_gradient" 256 "ffFC"
        CONV2D_WEIGHT_GRADIENT "conv2d_weight_gradient" 256 "ffFCu"
        CONV3D "conv3d" 256 "fffFVu"
        CONV3D_INPUT_GRADIENT "conv3d_input_gradient" 256 "ffFV"
        CONV3D_WEIGHT_GRADIENT "conv3d_weight_gradient" 256 "ffFVu"
    }
    CONV_BF16_CU "conv_half.cu" ["bf16.cuh", "tensor.cuh", "tensor_tile.cuh", "conv.cuh"] {
        CONV2D_BF16 "conv2d_bf16" 128 "fffFCu"
        CONV2D_BF16_INPUT_GRADIENT "conv2d_bf16_input_gradient" 128 "ffFC"
        CONV2D_BF16_WEIGHT_GRADIENT "conv2d_bf16_weight_gradient" 128 "ffFCu"
        CONV3D_BF16 "conv3d_bf16" 128 "fffFVu"
        CONV3D_BF16_INPUT_GRADIENT "conv3d_bf16_input_gradient" 128 "ffFV"
        CONV3D_BF16_WEIGHT_GRADIENT "conv3d_bf16_weight_gradient" 128 "ffFVu"
    }
    CONV_F16_CU "conv_half.cu" ["f16.cuh", "tensor.cuh", "tensor_tile.cuh", "conv.cuh"] {
        CONV2D_F16 "conv2d_f16" 128 "fffFCu"
        CONV2D_F16_INPUT_GRADIENT "conv2d_f16_input_gradient" 128 "ffFC"
        CONV2D_F16_WEIGHT_GRADIENT "conv2d_f16_weight_gradient" 128 "ffFCu"
        CONV3D_F16 "conv3d_f16" 128 "fffFVu"
        CONV3D_F16_INPUT_GRADIENT "conv3d_f16_input_gradient" 128 "ffFV"
        CONV3D_F16_WEIGHT_GRADIENT "conv3d_f16_weight_gradient" 128 "ffFVu"
    }
    ATTENTION_CU "attention.cu" ["math.cuh", "sums.cuh"] {
        ATTENTION_32 "attention_32" 128 "fFFuuur"
        ATTENTION_QUERIES_32 "attention_queries_32" 128 "ffffFFuuur"
        ATTENTION_KEYS_32 "attention_keys_32" 128 "ffffFuuur"
        ATTENTION_64 "attention_64" 128 "fFFuuur"
        ATTENTION_QUERIES_64 "attention_queries_64" 128 "ffffFFuuur"
        ATTENTION_KEYS_64 "attention_keys_64" 128 "ffffFuuur"
        ATTENTION_128 "attention_128" 128 "fFFuuur"
        ATTENTION_QUERIES_128 "attention_queries_128" 128 "ffffFFuuur"
        ATTENTION_KEYS_128 "attention_keys_128" 128 "ffffFuuur"
        ATTENTION_256 "attention_256" 128 "fFFuuur"
        ATTENTION_QUERIES_256 "attention_queries_256" 128 "ffffFFuuur"
        ATTENTION_KEYS_256 "attention_keys_256" 128 "ffffFuuur"
    }
    ATTENTION_BF16_CU "attention_half.cu" ["math.cuh", "sums.cuh", "bf16.cuh", "tensor.cuh"] {
        ATTENTION_BF16_32 "attention_bf16_32" 128 "hHFuuur"
        ATTENTION_BF16_QUERIES_32 "attention_bf16_queries_32" 128 "hhfhHFuuur"
        ATTENTION_BF16_KEYS_32 "attention_bf16_keys_32" 128 "hffhHuuur"
        ATTENTION_BF16_64 "attention_bf16_64" 128 "hHFuuur"
        ATTENTION_BF16_QUERIES_64 "attention_bf16_queries_64" 128 "hhfhHFuuur"
        ATTENTION_BF16_KEYS_64 "attention_bf16_keys_64" 128 "hffhHuuur"
        ATTENTION_BF16_128 "attention_bf16_128" 128 "hHFuuur"
        ATTENTION_BF16_QUERIES_128 "attention_bf16_queries_128" 128 "hhfhHFuuur"
        ATTENTION_BF16_KEYS_128 "attention_bf16_keys_128" 128 "hffhHuuur"
    }
    ATTENTION_F16_CU "attention_half.cu" ["math.cuh", "sums.cuh", "f16.cuh", "tensor.cuh"] {
        ATTENTION_F16_32 "attention_f16_32" 128 "hHFuuur"
        ATTENTION_F16_QUERIES_32 "attention_f16_queries_32" 128 "hhfhHFuuur"
        ATTENTION_F16_KEYS_32 "attention_f16_keys_32" 128 "hffhHuuur"
        ATTENTION_F16_64 "attention_f16_64" 128 "hHFuuur"
        ATTENTION_F16_QUERIES_64 "attention_f16_queries_64" 128 "hhfhHFuuur"
        ATTENTION_F16_KEYS_64 "attention_f16_keys_64" 128 "hffhHuuur"
        ATTENTION_F16_128 "attention_f16_128" 128 "hHFuuur"
        ATTENTION_F16_QUERIES_128 "attention_f16_queries_128" 128 "hhfhHFuuur"
        ATTENTION_F16_KEYS_128 "attention_f16_keys_128" 128 "hffhHuuur"
    }
    PRODUCT_BF16_CU "product_half.cu" ["math.cuh", "bf16.cuh", "tensor.cuh"] {
        PRODUCT_BF16_NT_64 "product_bf16_nt_64" 128 "hhfFHuuullluuu"
        PRODUCT_BF16_NN_64 "product_bf16_nn_64" 128 "hhfFHuuullluuu"
        PRODUCT_BF16_TN_64 "product_bf16_tn_64" 128 "hhfFHuuullluuu"
        PRODUCT_BF16_NT_128 "product_bf16_nt_128" 128 "hhfFHuuullluuu"
        PRODUCT_BF16_NN_128 "product_bf16_nn_128" 128 "hhfFHuuullluuu"
        PRODUCT_BF16_TN_128 "product_bf16_tn_128" 128 "hhfFHuuullluuu"
        LINEAR_BF16_GELU_64 "linear_bf16_gelu_64" 128 "hhfFFuuuuu"
        LINEAR_BF16_GELU_128 "linear_bf16_gelu_128" 128 "hhfFFuuuuu"
    }
    PRODUCT_F16_CU "product_half.cu" ["math.cuh", "f16.cuh", "tensor.cuh"] {
        PRODUCT_F16_NT_64 "product_f16_nt_64" 128 "hhfFHuuullluuu"
        PRODUCT_F16_NN_64 "product_f16_nn_64" 128 "hhfFHuuullluuu"
        PRODUCT_F16_TN_64 "product_f16_tn_64" 128 "hhfFHuuullluuu"
        PRODUCT_F16_NT_128 "product_f16_nt_128" 128 "hhfFHuuullluuu"
        PRODUCT_F16_NN_128 "product_f16_nn_128" 128 "hhfFHuuullluuu"
        PRODUCT_F16_TN_128 "product_f16_tn_128" 128 "hhfFHuuullluuu"
        LINEAR_F16_GELU_64 "linear_f16_gelu_64" 128 "hhfFFuuuuu"
        LINEAR_F16_GELU_128 "linear_f16_gelu_128" 128 "hhfFFuuuuu"
    }
}

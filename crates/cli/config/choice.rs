//! The keys whose value is one word of a few.

/// Writes an enum with the words that a user writes for its values.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// The words for all values.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// The word for this value.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// The value of a word.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

choice!(
    /// What separates the ranks of one host.
    Isolation {
        /// A process each: a crash of one leaves the others alone.
        Process = "process",
        /// Threads of one process: no start-up cost, no protection.
        Thread = "thread",
    }
);
choice!(
    /// What products, convolutions and attention round their operands to.
    Precision {
        /// 32-bit floats: nothing.
        F32 = "f32",
        /// 16-bit floats with the exponent of f32, on GPUs.
        Bf16 = "bf16",
        /// 16-bit floats of IEEE, on GPUs, with a loss that is scaled.
        F16 = "f16",
    }
);
choice!(
    /// In which order gradients are added up.
    Reduce {
        /// Along the tree of micro-batches: the same bits for any number of ranks.
        Exact = "exact",
        /// Along the ring of ranks.
        Ring = "ring",
    }
);
choice!(
    /// What every node of the sum of gradients is rounded to.
    Wire {
        /// 32-bit floats: nothing more than the additions do.
        F32 = "f32",
        /// 16-bit floats with the exponent of f32: half the bytes between hosts.
        Bf16 = "bf16",
    }
);
choice!(
    /// What carries the gradients from rank to rank.
    Backend {
        /// The host, while ranks compute on the CPU.
        Auto = "auto",
        /// Shared memory, and encrypted links between hosts.
        Host = "host",
        /// NCCL, or RCCL.
        Nccl = "nccl",
    }
);
choice!(
    /// The instruction set of the kernels.
    Isa {
        /// The best of this machine.
        Auto = "auto",
        /// No vector instructions of its own.
        Scalar = "scalar",
        /// 256-bit vectors.
        Avx2 = "avx2",
        /// 512-bit vectors.
        Avx512 = "avx512",
    }
);
choice!(
    /// Which reader of data.
    DataKind {
        /// The handwritten digits inside the binary.
        Digits = "digits",
        /// Files in the format of MNIST.
        Idx = "idx",
        /// A table of numbers.
        Csv = "csv",
        /// Two NumPy arrays.
        Npy = "npy",
        /// The bytes of a file.
        Text = "text",
        /// The token ids of a file.
        Tokens = "tokens",
        /// The data of a program of one's own.
        Own = "own",
    }
);
choice!(
    /// Which family of models.
    ModelKind {
        /// Fully connected layers.
        Mlp = "mlp",
        /// Convolutions over images, then fully connected layers.
        Cnn = "cnn",
        /// The same over sequences.
        Cnn1d = "cnn1d",
        /// The same over volumes.
        Cnn3d = "cnn3d",
        /// A causal transformer.
        Gpt = "gpt",
        /// The same as OpenAI's GPT-2.
        Gpt2 = "gpt2",
        /// The model of a program of one's own.
        Own = "own",
    }
);
choice!(
    /// Whether blocks of a model make their forward pass again, in place of keeping what the backward pass needs.
    Recompute {
        /// Where a GPU has no room otherwise.
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
);
choice!(
    /// What is done about a micro-batch that a GPU has no room for.
    Oom {
        /// The run ends before its first step, and names one that there is room for.
        Stop = "stop",
        /// That one is taken.
        Shrink = "shrink",
    }
);
choice!(
    /// Which loss.
    LossKind {
        /// Softmax and negative log likelihood.
        CrossEntropy = "cross_entropy",
        /// Mean squared error.
        Mse = "mse",
    }
);
choice!(
    /// Which optimizer.
    OptimizerKind {
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// Gradient descent with momentum.
        Sgd = "sgd",
    }
);
choice!(
    /// How the learning rate follows the global batch.
    LrScaling {
        /// Not at all.
        None = "none",
        /// In proportion.
        Linear = "linear",
        /// As its square root.
        Sqrt = "sqrt",
    }
);
choice!(
    /// How the learning rate runs over the training.
    ScheduleKind {
        /// Half a cosine down.
        Cosine = "cosine",
        /// A straight line down.
        Linear = "linear",
        /// Flat.
        Constant = "constant",
        /// Drops at fixed places.
        Step = "step",
    }
);
choice!(
    /// Which result marks the best checkpoint.
    Best {
        /// The highest validation accuracy.
        ValAccuracy = "val_accuracy",
        /// The lowest validation loss.
        ValLoss = "val_loss",
        /// None is marked.
        None = "none",
    }
);

//! A net as a file describes it, and what one batch of it does.
//!
//! ```toml
//! gemm = "cublas"    # or "own"; left out: cuBLAS where it can be loaded, else gpumon's own kernel
//!
//! [[block]]
//! repeat = 12        # as if written twelve times, each with weights of its own; 1 if left out
//! layers = [
//!   { kind = "gemm", rows = 128, inputs = 768, outputs = 3072 },       # rows an item
//!   { kind = "convolution", height = 56, width = 56, channels = 64, outputs = 128, kernel = 3, stride = 2 },
//!   { kind = "elementwise", elements = 98304, inputs = 2 },            # elements an item; 1 or 2 inputs
//! ]
//! ```
//!
//! Rule: layers run one after another, each on what the one before wrote, in half precision. A convolution is a gathering of its
//! patches (none where the kernel is 1 and the stride too) and a matrix product; its edges are padded with kernel / 2 zeros.
//! Cases: sizes of layers need not match: what is computed is time and power, not an answer. Matrix products take multiples of eight,
//! because tensor cores do; a convolution's patches are filled up to that.
//! Not done here: running it ([`super::gpu`]).

use serde::Deserialize;

/// A net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// Its layers, blocks repeated.
    pub layers: Vec<Layer>,
    /// Who multiplies matrices.
    pub multiplier: Multiplier,
}

/// Who multiplies matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Multiplier {
    /// cuBLAS if it can be loaded.
    #[default]
    #[serde(skip)]
    Any,
    /// cuBLAS.
    Cublas,
    /// gpumon's own kernel.
    Own,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    gemm: Multiplier,
    #[serde(default, rename = "block")]
    blocks: Vec<Block>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    #[serde(default = "one")]
    repeat: u32,
    layers: Vec<Layer>,
}

const fn one() -> u32 {
    1
}

/// One layer; sizes are those of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Layer {
    /// A matrix product with weights.
    Gemm {
        /// Rows.
        rows: u32,
        /// Values in a row.
        inputs: u32,
        /// Values in a row of the result.
        outputs: u32,
    },
    /// A convolution over an image, channels last.
    Convolution {
        /// Rows of the image.
        height: u32,
        /// Columns.
        width: u32,
        /// Values at each place.
        channels: u32,
        /// Values at each place of the result.
        outputs: u32,
        /// Side of the kernel.
        #[serde(default = "one")]
        kernel: u32,
        /// Places between two of the result.
        #[serde(default = "one")]
        stride: u32,
    },
    /// One function of each value, or of two.
    Elementwise {
        /// Values.
        elements: u32,
        /// One or two tensors that are read.
        #[serde(default = "one")]
        inputs: u32,
    },
}

/// What the GPU is told to do for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Gathers the patches of a convolution into the scratch tensor.
    Im2col(Im2col),
    /// `m` × `n` from `m` × `k` (what was written last, or the scratch tensor) and the weights `n` × `k` of that number.
    Gemm {
        /// Rows.
        m: u64,
        /// Columns.
        n: u32,
        /// Length of a sum.
        k: u32,
        /// Number of the weights.
        weights: usize,
        /// Whether it reads the scratch tensor.
        gathered: bool,
    },
    /// So many values.
    Elementwise {
        /// Values.
        elements: u64,
        /// Tensors that are read.
        inputs: u32,
    },
}

/// A gathering of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Im2col {
    /// Rows of the result, of the whole batch.
    pub rows: u64,
    /// Image.
    pub height: u32,
    /// Image.
    pub width: u32,
    /// Values at each place.
    pub channels: u32,
    /// Side of the kernel.
    pub kernel: u32,
    /// Places between two patches.
    pub stride: u32,
    /// Of the result.
    pub out_height: u32,
    /// Of the result.
    pub out_width: u32,
    /// Values in a row of the result.
    pub row_length: u32,
}

/// What a batch does and needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// In order.
    pub ops: Vec<Op>,
    /// Values of the largest tensor between two layers.
    pub tensor: u64,
    /// Values of the largest tensor of patches.
    pub scratch: u64,
    /// `n` and `k` of all weights.
    pub weights: Vec<(u32, u32)>,
}

/// Why there is no such net.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// It is not TOML of this shape; the message gives line and column.
    #[error("{0}")]
    Shape(String),
    /// There is nothing to run.
    #[error("no [[block]] with layers is listed; add at least one")]
    Empty,
    /// A number is out of its range.
    #[error("block {block}, layer {layer}: `{key}` is {found}; expected {expected}")]
    Value {
        /// Number of the block, from 1.
        block: usize,
        /// Number of the layer in it, from 1.
        layer: usize,
        /// Key.
        key: &'static str,
        /// What it holds.
        found: u32,
        /// What was expected.
        expected: &'static str,
    },
    /// It is too long.
    #[error("it has {0} layers, repeats counted; 10000 is the most")]
    Long(u64),
    /// A batch of it is larger than can be computed.
    #[error("a batch of {0} items has tensors of more than 2^40 values, or of more than 2^31 rows")]
    Large(u32),
}

const LAYERS: u64 = 10_000;
const SIZE: u32 = 1 << 28;
const TENSOR: u64 = 1 << 40;
const ROWS: u64 = i32::MAX as u64;

impl Net {
    /// The net that a TOML text describes.
    pub fn parse(text: &str) -> Result<Self, NetError> {
        let file: File = toml::from_str(text).map_err(|e| NetError::Shape(e.to_string().trim().into()))?;
        for (b, block) in file.blocks.iter().enumerate() {
            for (l, layer) in block.layers.iter().enumerate() {
                if let Some((key, found, expected)) = layer.odd() {
                    return Err(NetError::Value { block: b + 1, layer: l + 1, key, found, expected });
                }
            }
        }
        let count: u64 = file.blocks.iter().map(|b| u64::from(b.repeat) * b.layers.len() as u64).sum();
        match count {
            0 => Err(NetError::Empty),
            1..=LAYERS => {
                let repeated = |b: Block| {
                    let n = b.layers.len() * b.repeat as usize;
                    b.layers.into_iter().cycle().take(n)
                };
                let layers = file.blocks.into_iter().flat_map(repeated).collect();
                Ok(Self { layers, multiplier: file.gemm })
            }
            more => Err(NetError::Long(more)),
        }
    }

    /// What a batch of so many items does.
    pub fn batch(&self, items: u32) -> Result<Batch, NetError> {
        let mut batch = Batch { ops: Vec::new(), tensor: 0, scratch: 0, weights: Vec::new() };
        self.layers.iter().for_each(|layer| batch.add(layer, items));
        let rows = batch.ops.iter().map(|op| if let Op::Gemm { m, .. } = op { *m } else { 0 }).max();
        match batch.tensor.max(batch.scratch) < TENSOR && rows.unwrap_or(0) <= ROWS {
            true => Ok(batch),
            false => Err(NetError::Large(items)),
        }
    }
}

impl Layer {
    /// A key whose number is out of its range.
    fn odd(&self) -> Option<(&'static str, u32, &'static str)> {
        const SOME: &str = "1 to 268435456";
        const EIGHTS: &str = "a multiple of 8, 8 to 268435456";
        let some = |key, n: u32| (!(1..=SIZE).contains(&n)).then_some((key, n, SOME));
        let eights =
            |key, n: u32| (!(8..=SIZE).contains(&n) || !n.is_multiple_of(8)).then_some((key, n, EIGHTS));
        match *self {
            Self::Gemm { rows, inputs, outputs } => {
                some("rows", rows).or(eights("inputs", inputs)).or(eights("outputs", outputs))
            }
            Self::Convolution { height, width, channels, outputs, kernel, stride } => {
                let side = |key, n: u32| (!(1..=65_536).contains(&n)).then_some((key, n, "1 to 65536"));
                let kernel = (!(1..=31).contains(&kernel) || kernel % 2 == 0).then_some((
                    "kernel",
                    kernel,
                    "odd, 1 to 31",
                ));
                let stride = (!(1..=31).contains(&stride)).then_some(("stride", stride, "1 to 31"));
                let channels =
                    (!(1..=65_536).contains(&channels)).then_some(("channels", channels, "1 to 65536"));
                let sides = side("height", height).or(side("width", width));
                sides.or(channels).or(eights("outputs", outputs)).or(kernel).or(stride)
            }
            Self::Elementwise { elements, inputs } => {
                let inputs = (!(1..=2).contains(&inputs)).then_some(("inputs", inputs, "1 or 2"));
                eights("elements", elements).or(inputs)
            }
        }
    }
}

impl Batch {
    fn add(&mut self, layer: &Layer, items: u32) {
        match *layer {
            Layer::Gemm { rows, inputs, outputs } => {
                self.gemm(product(&[items, rows]), outputs, inputs, false);
            }
            Layer::Convolution { height, width, channels, outputs, kernel, stride } => {
                let (out_height, out_width) = (height.div_ceil(stride), width.div_ceil(stride));
                let rows = product(&[items, out_height, out_width]);
                self.tensor = self.tensor.max(product(&[items, height, width, channels]));
                if kernel == 1 && stride == 1 && channels.is_multiple_of(8) {
                    self.gemm(rows, outputs, channels, false);
                } else {
                    let row_length = (kernel * kernel * channels).next_multiple_of(8);
                    self.scratch = self.scratch.max(rows.saturating_mul(u64::from(row_length)));
                    self.ops.push(Op::Im2col(Im2col {
                        rows,
                        height,
                        width,
                        channels,
                        kernel,
                        stride,
                        out_height,
                        out_width,
                        row_length,
                    }));
                    self.gemm(rows, outputs, row_length, true);
                }
            }
            Layer::Elementwise { elements, inputs } => {
                let elements = product(&[items, elements]);
                self.tensor = self.tensor.max(elements);
                self.ops.push(Op::Elementwise { elements, inputs });
            }
        }
    }

    fn gemm(&mut self, m: u64, n: u32, k: u32, gathered: bool) {
        let read = if gathered { 0 } else { k };
        self.tensor = self.tensor.max(m.saturating_mul(u64::from(n.max(read))));
        self.ops.push(Op::Gemm { m, n, k, weights: self.weights.len(), gathered });
        self.weights.push((n, k));
    }

    /// Multiplications and additions of its matrix products.
    pub fn flops(&self) -> f64 {
        let of = |op: &Op| match *op {
            Op::Gemm { m, n, k, .. } => 2.0 * m as f64 * f64::from(n) * f64::from(k),
            _ => 0.0,
        };
        self.ops.iter().map(of).sum()
    }
}

fn product(sizes: &[u32]) -> u64 {
    sizes.iter().fold(1, |product: u64, size| product.saturating_mul(u64::from(*size)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::NETS;
    use super::*;

    #[test]
    fn the_nets_that_come_along_are_of_the_size_that_they_say() {
        let net = |name: &str| Net::parse(NETS.iter().find(|(n, _)| *n == name).unwrap().1).unwrap();
        let weights = |b: &Batch| b.weights.iter().map(|(n, k)| u64::from(*n) * u64::from(*k)).sum::<u64>();
        let conv = net("convnet").batch(1).unwrap();
        // ResNet-50 has 25.6 M weights and 4.1 G multiplications an item.
        assert!((25e6..27e6).contains(&(weights(&conv) as f64)), "{}", weights(&conv));
        assert!((7e9..9e9).contains(&conv.flops()), "{}", conv.flops());
        let text = net("transformer").batch(2).unwrap();
        assert_eq!(weights(&text), 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072));
        assert_eq!(text.flops(), 2.0 * 2.0 * 128.0 * weights(&text) as f64);
        assert_eq!(net("stream").batch(3).unwrap().tensor, 3 << 24);
    }

    #[test]
    fn a_convolution_gathers_unless_it_reads_single_places() {
        let net = Net::parse(
            "[[block]]\nlayers = [{ kind = \"convolution\", height = 5, width = 4, channels = 3, outputs = 8, kernel = 3, \
             stride = 2 }, { kind = \"convolution\", height = 5, width = 4, channels = 8, outputs = 16 }]",
        )
        .unwrap();
        let batch = net.batch(2).unwrap();
        let [Op::Im2col(gather), first, second] = batch.ops[..] else { panic!("{:?}", batch.ops) };
        assert_eq!((gather.rows, gather.out_height, gather.out_width, gather.row_length), (12, 3, 2, 32));
        assert_eq!(first, Op::Gemm { m: 12, n: 8, k: 32, weights: 0, gathered: true });
        assert_eq!(second, Op::Gemm { m: 40, n: 16, k: 8, weights: 1, gathered: false });
        assert_eq!((batch.tensor, batch.scratch), (640, 384));
    }

    #[test]
    fn what_is_no_net_is_explained() {
        let says = |text: &str| Net::parse(text).unwrap_err().to_string();
        assert!(says("").contains("no [[block]]"));
        assert!(says("[[block]]\nlayers = []").contains("no [[block]]"));
        let gemm = "[[block]]\nlayers = [{ kind = \"gemm\", rows = 1, inputs = 12, outputs = 8 }]";
        assert!(says(gemm).contains("block 1, layer 1: `inputs` is 12; expected a multiple of 8"));
        assert!(says(&gemm.replace("12", "8").replace("rows = 1", "rows = 0")).contains("`rows` is 0"));
        assert!(says(&gemm.replace("gemm", "lstm")).contains("lstm"));
        assert!(says(&gemm.replace("rows", "colour")).contains("colour"));
        assert!(
            says(&gemm.replace("12", "8").replace("[[block]]", "[[block]]\nrepeat = 10001"))
                .contains("10001 layers")
        );
        let large = gemm.replace("12", "268435456").replace("rows = 1", "rows = 268435456");
        assert_eq!(Net::parse(&large).unwrap().batch(1_000_000), Err(NetError::Large(1_000_000)));
    }

    proptest! {
        #[test]
        fn any_layer_is_refused_or_computed_without_overflow(n in proptest::array::uniform6(any::<u32>()), items in 1_u32..1_000_000) {
            let text = format!(
                "[[block]]\nlayers = [{{ kind = \"convolution\", height = {}, width = {}, channels = {}, outputs = {}, kernel = {}, stride = {} }}]",
                n[0] % 70_000, n[1] % 70_000, n[2] % 70_000, n[3] / 8 * 8, n[4] % 33, n[5] % 33
            );
            if let Ok(batch) = Net::parse(&text).and_then(|net| net.batch(items)) {
                prop_assert!(batch.tensor < TENSOR && batch.scratch < TENSOR);
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = Net::parse(&text);
        }
    }
}

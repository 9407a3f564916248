//! Unpacks and packs OP_COMPRESSED: another message, compressed in one of three ways.
//!
//! The stated size is checked against the limits before any memory is allocated. Unpacking never writes more than that,
//! and a message of any other unpacked size is refused. Compressor 0 (none) is refused, as the server does.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::{Header, MESSAGE_BYTES_MAX, OpCode, Rejection};

/// A compressor that Keyward can read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    /// Compressor 1.
    Snappy,
    /// Compressor 2.
    Zlib,
    /// Compressor 3.
    Zstd,
}

/// The fields between the header of an OP_COMPRESSED and the packed bytes.
pub(super) struct Prefix {
    /// The op code of the packed message.
    pub op_code: OpCode,
    /// The stated size of the unpacked message, without its header.
    pub size: i32,
    /// The number of its compressor.
    compressor_id: u8,
}

impl Prefix {
    /// Original op code, uncompressed size, compressor id.
    pub const BYTES: usize = 9;

    /// Reads it in `message`, which begins with the outer header; `None` while it hasn't arrived.
    pub fn read(message: &[u8]) -> Option<Prefix> {
        let bytes = message.get(Header::SIZE..)?.first_chunk::<{ Self::BYTES }>()?;
        let field = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Prefix {
            op_code: OpCode(field(0)),
            size: field(4),
            compressor_id: bytes[8],
        })
    }

    /// The compressor, if it is one of those that Keyward knows.
    pub fn compressor(&self) -> Option<Compressor> {
        Compressor::ALL
            .into_iter()
            .find(|compressor| compressor.id() == self.compressor_id)
    }
}

impl Compressor {
    /// All of them.
    pub const ALL: [Compressor; 3] = [Compressor::Snappy, Compressor::Zlib, Compressor::Zstd];

    /// The name by which `hello` negotiates it.
    pub fn name(self) -> &'static str {
        match self {
            Compressor::Snappy => "snappy",
            Compressor::Zlib => "zlib",
            Compressor::Zstd => "zstd",
        }
    }

    fn id(self) -> u8 {
        match self {
            Compressor::Snappy => 1,
            Compressor::Zlib => 2,
            Compressor::Zstd => 3,
        }
    }

    fn unpack(self, packed: &[u8], into: &mut [u8]) -> Option<usize> {
        match self {
            Compressor::Snappy if snap::raw::decompress_len(packed).ok()? == into.len() => {
                snap::raw::Decoder::new().decompress(packed, into).ok()
            }
            Compressor::Snappy => None,
            Compressor::Zlib => {
                let mut zlib = Decompress::new(true);
                let status = zlib.decompress(packed, into, FlushDecompress::Finish).ok()?;
                (status == Status::StreamEnd).then(|| zlib.total_out() as usize)
            }
            Compressor::Zstd => zstd::bulk::decompress_to_buffer(packed, into).ok(),
        }
    }

    fn pack(self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self {
            Compressor::Snappy => snap::raw::Encoder::new().compress_vec(bytes).ok(),
            Compressor::Zlib => {
                // The bound of zlib's own compressBound, in round figures.
                let mut packed = Vec::with_capacity(bytes.len() + bytes.len() / 1000 + 64);
                let mut zlib = Compress::new(Compression::default(), true);
                let status = zlib.compress_vec(bytes, &mut packed, FlushCompress::Finish).ok()?;
                (status == Status::StreamEnd).then_some(packed)
            }
            Compressor::Zstd => zstd::bulk::compress(bytes, zstd::DEFAULT_COMPRESSION_LEVEL).ok(),
        }
    }
}

/// Unpacks the OP_COMPRESSED `message` (whole, header included) into `into`.
///
/// `into` then holds the message that was packed, with the ids of the outer header.
///
/// # Errors
/// [`Rejection::Compression`] if it can't be unpacked to exactly the size it states; [`Rejection::NestedCompression`]
/// if another compressed message is in it.
pub fn decompress(message: &[u8], into: &mut Vec<u8>) -> Result<Compressor, Rejection> {
    let outer = Header::read(message)?.ok_or(Rejection::TooShort)?;
    let prefix = Prefix::read(message).ok_or(Rejection::Compression)?;
    let compressor = prefix.compressor().ok_or(Rejection::Compression)?;
    let length = usize::try_from(prefix.size)
        .map(|size| size + Header::SIZE)
        .ok()
        .filter(|length| *length <= MESSAGE_BYTES_MAX)
        .ok_or(Rejection::Compression)?;
    let inner = Header {
        length,
        op_code: prefix.op_code,
        ..outer
    };
    into.clear();
    into.resize(length, 0);
    into[..Header::SIZE].copy_from_slice(&inner.bytes());
    let packed = &message[Header::SIZE + Prefix::BYTES..];
    if compressor.unpack(packed, &mut into[Header::SIZE..]) != Some(length - Header::SIZE) {
        return Err(Rejection::Compression);
    }
    if inner.op_code == OpCode::COMPRESSED {
        return Err(Rejection::NestedCompression);
    }
    Ok(compressor)
}

/// The bytes that the OP_COMPRESSED `message` says it takes unpacked.
pub fn stated_bytes(message: &[u8]) -> Option<usize> {
    let stated = message.get(Header::SIZE + 4..)?.first_chunk::<4>()?;
    let bytes = usize::try_from(i32::from_le_bytes(*stated)).ok()?;
    Some(bytes.min(MESSAGE_BYTES_MAX))
}

/// Packs `message` (whole, header included) as an OP_COMPRESSED; `None` if the result would pass the limit.
pub fn compress(message: &[u8], compressor: Compressor) -> Option<Vec<u8>> {
    let inner = Header::read(message).ok()??;
    let packed = compressor.pack(&message[Header::SIZE..])?;
    let outer = Header {
        length: Header::SIZE + Prefix::BYTES + packed.len(),
        op_code: OpCode::COMPRESSED,
        ..inner
    };
    if outer.length > MESSAGE_BYTES_MAX {
        return None;
    }
    let size = i32::try_from(inner.length - Header::SIZE).ok()?;
    let mut bytes = Vec::with_capacity(outer.length);
    bytes.extend_from_slice(&outer.bytes());
    bytes.extend_from_slice(&inner.op_code.0.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.push(compressor.id());
    bytes.extend_from_slice(&packed);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(body: &[u8], op_code: OpCode) -> Vec<u8> {
        let header = Header {
            length: Header::SIZE + body.len(),
            request_id: 7,
            response_to: 0,
            op_code,
        };
        [&header.bytes()[..], body].concat()
    }

    proptest! {
        #[test]
        fn unpacks_what_it_packs(body in prop::collection::vec(0_u8..4, 0..5000)) {
            let original = message(&body, OpCode::MSG);
            for compressor in Compressor::ALL {
                let packed = compress(&original, compressor).unwrap();
                let mut unpacked = Vec::new();
                prop_assert_eq!(decompress(&packed, &mut unpacked), Ok(compressor));
                prop_assert_eq!(&unpacked, &original);
            }
        }

        #[test]
        fn survives_any_bytes(id in 0_u8..5, size in any::<i32>(), packed in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut body = 2013_i32.to_le_bytes().to_vec();
            body.extend_from_slice(&(size % 100_000).to_le_bytes());
            body.push(id);
            body.extend_from_slice(&packed);
            let _ = decompress(&message(&body, OpCode::COMPRESSED), &mut Vec::new());
        }
    }

    #[test]
    fn refuses_another_size_than_stated() {
        let original = message(b"some bytes, some bytes, some bytes", OpCode::MSG);
        for compressor in Compressor::ALL {
            for difference in [-1, 1, i32::MIN / 2, 48_000_000] {
                let mut packed = compress(&original, compressor).unwrap();
                let stated = 34 + difference;
                packed[20..24].copy_from_slice(&stated.to_le_bytes());
                assert_eq!(
                    decompress(&packed, &mut Vec::new()),
                    Err(Rejection::Compression),
                    "{compressor:?} {stated}"
                );
            }
        }
    }

    #[test]
    fn refuses_unknown_compressors_and_nesting() {
        let original = message(b"x", OpCode::MSG);
        for id in [0, 4, 255] {
            let mut packed = compress(&original, Compressor::Snappy).unwrap();
            packed[24] = id;
            assert_eq!(decompress(&packed, &mut Vec::new()), Err(Rejection::Compression));
        }
        let twice = compress(&compress(&original, Compressor::Zlib).unwrap(), Compressor::Zlib).unwrap();
        assert_eq!(decompress(&twice, &mut Vec::new()), Err(Rejection::NestedCompression));
    }
}

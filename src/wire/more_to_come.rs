//! Reads the beginning of a reply, and from it whether another reply follows unasked.
//!
//! The flags are the first bytes behind the header. If the reply is packed, only the beginning is unpacked, so that a long
//! reply can be forwarded before all of it has arrived. The rest is not checked; the reader of the reply finds its faults.

use flate2::{Decompress, FlushDecompress};
use zstd::stream::raw::{Decoder, Operation};

use super::compressed::Prefix;
use super::{Compressor, Flags, Header, OpCode, Rejection};

/// Whether another reply follows the one that `arrived` begins with; `None` until its flags have arrived.
///
/// # Errors
/// [`Rejection`] if it has no readable header, or if its flags can't be unpacked.
pub fn more_to_come(arrived: &[u8]) -> Result<Option<bool>, Rejection> {
    let Some(header) = Header::read(arrived)? else {
        return Ok(None);
    };
    let there = &arrived[..arrived.len().min(header.length)];
    let is_all = there.len() == header.length;
    match beginning(there, header)? {
        Beginning::Of(flags) => Ok(Some(Flags(u32::from_le_bytes(flags)).has(Flags::MORE_TO_COME))),
        Beginning::OfAnother => Ok(Some(false)),
        Beginning::Missing if is_all => Err(Rejection::TooShort),
        Beginning::Missing => Ok(None),
    }
}

/// Whether the OP_MSG that `arrived` begins with has these bytes behind its header: `is_it` says so. `None` until they have arrived.
///
/// # Errors
/// [`Rejection`] as for [`more_to_come`].
pub fn begins_with<const N: usize>(
    arrived: &[u8],
    is_it: impl Fn(&[u8; N]) -> bool,
) -> Result<Option<bool>, Rejection> {
    let Some(header) = Header::read(arrived)? else {
        return Ok(None);
    };
    let there = &arrived[..arrived.len().min(header.length)];
    Ok(match beginning(there, header)? {
        Beginning::Of(first) => Some(is_it(&first)),
        Beginning::OfAnother => Some(false),
        Beginning::Missing => (there.len() == header.length).then_some(false),
    })
}

/// The first bytes behind a message's header, unpacked.
enum Beginning<const N: usize> {
    /// Those of an OP_MSG.
    Of([u8; N]),
    /// The message isn't an OP_MSG.
    OfAnother,
    /// They aren't there.
    Missing,
}

/// The first bytes behind the `header` of the message that `there` begins with.
fn beginning<const N: usize>(there: &[u8], header: Header) -> Result<Beginning<N>, Rejection> {
    let first = match header.op_code {
        OpCode::MSG => there
            .get(Header::SIZE..)
            .and_then(|behind| behind.first_chunk().copied()),
        OpCode::COMPRESSED => match Prefix::read(there) {
            Some(prefix) if prefix.op_code == OpCode::COMPRESSED => return Err(Rejection::NestedCompression),
            Some(prefix) if prefix.op_code != OpCode::MSG => return Ok(Beginning::OfAnother),
            Some(prefix) => {
                let compressor = prefix.compressor().ok_or(Rejection::Compression)?;
                unpacked(compressor, &there[Header::SIZE + Prefix::BYTES..])?
            }
            None => None,
        },
        _ => return Ok(Beginning::OfAnother),
    };
    Ok(first.map_or(Beginning::Missing, Beginning::Of))
}

/// The first unpacked bytes, if enough of `packed` has arrived to unpack them.
fn unpacked<const N: usize>(compressor: Compressor, packed: &[u8]) -> Result<Option<[u8; N]>, Rejection> {
    let mut first = [0; N];
    let count = match compressor {
        Compressor::Snappy => unpack_snappy(packed, &mut first),
        Compressor::Zlib => unpack_zlib(packed, &mut first),
        Compressor::Zstd => unpack_zstd(packed, &mut first),
    };
    let count = count.ok_or(Rejection::Compression)?;
    Ok((count == N).then_some(first))
}

fn unpack_zlib(packed: &[u8], into: &mut [u8]) -> Option<usize> {
    let mut zlib = Decompress::new(true);
    zlib.decompress(packed, into, FlushDecompress::None).ok()?;
    usize::try_from(zlib.total_out()).ok()
}

fn unpack_zstd(packed: &[u8], into: &mut [u8]) -> Option<usize> {
    let mut zstd = Decoder::new().ok()?;
    let (mut read, mut written) = (0, 0);
    loop {
        let status = zstd.run_on_buffers(&packed[read..], &mut into[written..]).ok()?;
        read += status.bytes_read;
        written += status.bytes_written;
        if written == into.len() || status.bytes_read + status.bytes_written == 0 {
            return Some(written);
        }
    }
}

/// Unpacks the beginning by hand, because the library unpacks only whole messages.
///
/// The format is a length, then runs of bytes and repetitions of earlier bytes (Snappy's `format_description.txt`).
fn unpack_snappy(packed: &[u8], into: &mut [u8]) -> Option<usize> {
    let length_bytes = packed.iter().take_while(|byte| **byte >= 0x80).count() + 1;
    let mut rest = packed.get(length_bytes..).unwrap_or_default();
    let mut count = 0;
    while let Some((tag, behind)) = rest.split_first()
        && count < into.len()
    {
        let upper = usize::from(tag >> 2);
        // The number of further bytes that hold the length of a run, or the distance of a repetition.
        let more = match (tag & 3, upper) {
            (0, 60..) => upper - 59,
            (0, _) => 0,
            (1, _) => 1,
            (2, _) => 2,
            _ => 4,
        };
        let Some((number, behind)) = behind.split_at_checked(more) else {
            break;
        };
        let number = number.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let room = into.len() - count;
        if tag & 3 == 0 {
            let length = if more == 0 { upper + 1 } else { number + 1 };
            let run = &behind[..length.min(behind.len())];
            let taken = run.len().min(room);
            into[count..count + taken].copy_from_slice(&run[..taken]);
            count += taken;
            rest = &behind[run.len()..];
        } else {
            let (length, back) = match tag & 3 {
                1 => (4 + (upper & 7), (upper >> 3) << 8 | number),
                _ => (upper + 1, number),
            };
            for _ in 0..length.min(room) {
                let from = count.checked_sub(back).filter(|from| *from < count)?;
                into[count] = into[from];
                count += 1;
            }
            rest = behind;
        }
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{compress, decompress};

    /// Bytes of an OP_MSG's flags.
    const FLAG_BYTES: usize = 4;

    fn message(flags: u32, body: &[u8]) -> Vec<u8> {
        let header = Header {
            length: Header::SIZE + FLAG_BYTES + body.len(),
            request_id: 7,
            response_to: 6,
            op_code: OpCode::MSG,
        };
        [&header.bytes()[..], &flags.to_le_bytes(), body].concat()
    }

    fn forms(message: &[u8]) -> Vec<Vec<u8>> {
        let packed = Compressor::ALL.map(|compressor| compress(message, compressor).unwrap());
        [vec![message.to_vec()], packed.to_vec()].concat()
    }

    proptest! {
        #[test]
        fn is_told_from_any_beginning_that_has_it_and_from_the_whole(
            flags in prop::sample::select(vec![0, 2, 0x0202_0202, 0x1_0000, 0x1_0002, u32::MAX, 0xfffd]),
            body in prop::collection::vec(0_u8..3, 0..3000),
        ) {
            let expected = flags & Flags::MORE_TO_COME != 0;
            for mut form in forms(&message(flags, &body)) {
                let mut was_known = false;
                for end in 0..form.len() {
                    let answer = more_to_come(&form[..end]).unwrap();
                    prop_assert!(answer == Some(expected) || answer.is_none() && !was_known, "{answer:?} after {end} bytes");
                    was_known = answer.is_some();
                }
                // The next one may be there, too.
                form.extend_from_slice(&[0xff; 20]);
                prop_assert_eq!(more_to_come(&form), Ok(Some(expected)));
            }
        }

        #[test]
        fn any_bytes_are_read_as_by_who_unpacks_the_whole(id in 1_u8..4, packed in prop::collection::vec(any::<u8>(), 0..50)) {
            let mut body = OpCode::MSG.0.to_le_bytes().to_vec();
            body.extend_from_slice(&(i32::from(*packed.first().unwrap_or(&0)) & 0x7f).to_le_bytes());
            body.push(id);
            body.extend_from_slice(&packed);
            let mut form = message(0, &[]);
            form.truncate(Header::SIZE);
            form.extend_from_slice(&body);
            let length = i32::try_from(form.len()).unwrap();
            form[..4].copy_from_slice(&length.to_le_bytes());
            form[12..16].copy_from_slice(&OpCode::COMPRESSED.0.to_le_bytes());
            let answer = more_to_come(&form);
            let mut whole = Vec::new();
            if decompress(&form, &mut whole).is_ok() && let Some(flags) = Flags::of(&whole) {
                prop_assert_eq!(answer, Ok(Some(flags.has(Flags::MORE_TO_COME))));
            }
        }
    }

    #[test]
    fn long_replies_are_told_from_little_of_them() {
        let mut random = 1_u32;
        let body: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random.to_be_bytes()[0]
        })
        .take(3_000_000)
        .collect();
        for form in forms(&message(Flags::MORE_TO_COME, &body)) {
            // The largest block of zstd, and a little.
            assert_eq!(more_to_come(&form[..130 * 1024]), Ok(Some(true)));
        }
    }

    #[test]
    fn others_are_followed_by_none_or_refused() {
        let mut reply = message(Flags::MORE_TO_COME, b"x");
        reply[12..16].copy_from_slice(&OpCode::REPLY.0.to_le_bytes());
        for form in forms(&reply) {
            assert_eq!(more_to_come(&form), Ok(Some(false)));
        }
        let mut short = message(0, b"")[..18].to_vec();
        short[0] = 18;
        assert_eq!(more_to_come(&short), Err(Rejection::TooShort));
        let packed = compress(&message(0, b"x"), Compressor::Zlib).unwrap();
        let twice = compress(&packed, Compressor::Zlib).unwrap();
        assert_eq!(more_to_come(&twice), Err(Rejection::NestedCompression));
    }
}

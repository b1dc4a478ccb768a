//! libjpeg-turbo, by its TurboJPEG interface: headers, and the pixels of a region of a picture at a size that its transform
//! gives. All `unsafe` of this crate but the choice of registers is here.

use std::ffi::CStr;
use turbojpeg_sys as raw;

/// Passes over a picture. Progressive files have ten or so; one with more is left to Pillow, as whatever else is odd.
const MOST_SCANS: libc::c_int = 64;
/// MiB that libjpeg-turbo takes for itself at most: progressive pictures are held whole, as coefficients.
const MOST_MEMORY_MIB: libc::c_int = 1024;
const BYTES_PER_PIXEL: usize = 4;

/// Why a picture is not decoded here, in libjpeg-turbo's words or ours.
pub type Reason = String;

/// What the header of a picture says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Pixels, at least 1.
    pub width: u32,
    /// Pixels, at least 1.
    pub height: u32,
    /// Columns and rows that are compressed together; None if they are of a kind by which no region can be decoded alone.
    pub(crate) block: Option<(u32, u32)>,
}

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) left: u32,
    pub(crate) top: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// A picture whose header was read; its bytes are borrowed, so that they are the same when it is decoded.
///
/// Each has a decompressor of its own: what a file defines in one (tables of frequencies and codes) a later one could use that
/// lacks them, and would be decoded where it is broken.
#[derive(Debug)]
pub(crate) struct Opened<'a> {
    handle: Handle,
    data: &'a [u8],
    pub(crate) header: Header,
}

/// Of a decompressor.
#[derive(Debug)]
struct Handle(raw::tjhandle);

impl Handle {
    fn new() -> Result<Handle, Reason> {
        // SAFETY: no pointer goes in; what comes out is a handle or null.
        let handle = unsafe { raw::tj3Init(raw::TJINIT_TJINIT_DECOMPRESS as libc::c_int) };
        if handle.is_null() {
            return Err("there is no memory for a decompressor".into());
        }
        let mut handle = Handle(handle);
        // What becomes of a file with a fault that libjpeg-turbo would go over, Pillow decides.
        handle.set(raw::TJPARAM_TJPARAM_STOPONWARNING, 1)?;
        handle.set(raw::TJPARAM_TJPARAM_SCANLIMIT, MOST_SCANS)?;
        handle.set(raw::TJPARAM_TJPARAM_MAXMEMORY, MOST_MEMORY_MIB)?;
        Ok(handle)
    }

    fn set(&mut self, parameter: raw::TJPARAM, value: libc::c_int) -> Result<(), Reason> {
        // SAFETY: the handle is a decompressor's, and numbers go in.
        let done = unsafe { raw::tj3Set(self.0, parameter as libc::c_int, value) };
        self.checked(done)
    }

    fn get(&mut self, parameter: raw::TJPARAM) -> libc::c_int {
        // SAFETY: the handle is a decompressor's, and numbers go in and come out.
        unsafe { raw::tj3Get(self.0, parameter as libc::c_int) }
    }

    fn checked(&mut self, done: libc::c_int) -> Result<(), Reason> {
        if done == 0 {
            return Ok(());
        }
        // SAFETY: the text is in the handle or in this thread, ends in a zero byte and stays until the next error; it is
        // copied here.
        let text = unsafe { CStr::from_ptr(raw::tj3GetErrorStr(self.0)) };
        Err(text.to_string_lossy().replace('\n', " "))
    }
}

impl<'a> Opened<'a> {
    /// Reads the header of a picture.
    ///
    /// # Errors
    /// It is no JPEG, or one that is not decoded here: of four colours, of more than 8 bits, without loss.
    pub(crate) fn new(data: &'a [u8]) -> Result<Opened<'a>, Reason> {
        let mut handle = Handle::new()?;
        // SAFETY: the handle is a decompressor's, and `data` is readable for its length, which outlives the handle.
        let done = unsafe { raw::tj3DecompressHeader(handle.0, data.as_ptr(), data.len() as raw::size_t) };
        handle.checked(done)?;
        if handle.get(raw::TJPARAM_TJPARAM_PRECISION) != 8 || handle.get(raw::TJPARAM_TJPARAM_LOSSLESS) != 0 {
            return Err("it is not of 8 bits with loss".into());
        }
        let space = handle.get(raw::TJPARAM_TJPARAM_COLORSPACE);
        let known = [raw::TJCS_TJCS_RGB, raw::TJCS_TJCS_YCbCr, raw::TJCS_TJCS_GRAY];
        if !known.contains(&(space as raw::TJCS)) {
            return Err("it is not of three colours or grey".into());
        }
        // Of a file that has tables alone nothing is known.
        let side = |value| u32::try_from(value).ok().filter(|side| *side > 0).ok_or("it has no pixels");
        let width = side(handle.get(raw::TJPARAM_TJPARAM_JPEGWIDTH))?;
        let height = side(handle.get(raw::TJPARAM_TJPARAM_JPEGHEIGHT))?;
        // Of progressive ones, which are held whole in any case, blocks may be smoothed by those around them.
        let progressive = handle.get(raw::TJPARAM_TJPARAM_PROGRESSIVE) != 0;
        let block = if progressive { None } else { block(handle.get(raw::TJPARAM_TJPARAM_SUBSAMP)) };
        Ok(Opened { handle, data, header: Header { width, height, block } })
    }

    /// Decodes a region of the picture, whose sides are divided by 1, 2, 4 or 8, as pixels of four bytes, of which the last is without
    /// meaning; None: all of it. They are at the begin of `to`, which never shrinks. A region's `left` is a multiple of the
    /// block's width at that size.
    ///
    /// # Errors
    /// It is broken, or cut, or takes too much memory; or there is no such region.
    pub(crate) fn decode(
        self,
        divisor: u32,
        region: Option<&Region>,
        to: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let Opened { mut handle, data, header } = self;
        let factor = raw::tjscalingfactor { num: 1, denom: divisor as libc::c_int };
        // SAFETY: the handle is a decompressor's; the factor is copied, and refused if there is no such one.
        let done = unsafe { raw::tj3SetScalingFactor(handle.0, factor) };
        handle.checked(done)?;
        let (width, height) = (scaled(header.width, divisor), scaled(header.height, divisor));
        let all = Region { left: 0, top: 0, width, height };
        let wanted = region.unwrap_or(&all);
        if wanted.width == 0 || wanted.height == 0 {
            return Err("the region is empty".into());
        }
        let signed = |value| libc::c_int::try_from(value).map_err(|_| "the region is too large");
        let cropping = match region {
            Some(region) => raw::tjregion {
                x: signed(region.left)?,
                y: signed(region.top)?,
                w: signed(region.width)?,
                h: signed(region.height)?,
            },
            // Which stands for all of it.
            None => raw::tjregion { x: 0, y: 0, w: 0, h: 0 },
        };
        // SAFETY: the handle is a decompressor's, which has read a header; the region is copied, and refused unless it is within
        // the scaled picture and at the begin of a block.
        let done = unsafe { raw::tj3SetCroppingRegion(handle.0, cropping) };
        handle.checked(done)?;
        let pitch = wanted.width as usize * BYTES_PER_PIXEL;
        let signed_pitch = libc::c_int::try_from(pitch).map_err(|_| "the region is too wide")?;
        let bytes = pitch * wanted.height as usize;
        if to.len() < bytes {
            to.resize(bytes, 0);
        }
        // SAFETY: the handle is a decompressor's and `data` is readable for its length. What is written is `wanted.height` rows,
        // `pitch` bytes apart, of `wanted.width` pixels of four bytes, for which `to` has at least as many bytes: the region if there is one, and otherwise
        // the scaled picture by the header, which libjpeg-turbo reads again of the same bytes: they are borrowed since.
        let done = unsafe {
            raw::tj3Decompress8(
                handle.0,
                data.as_ptr(),
                data.len() as raw::size_t,
                to.as_mut_ptr(),
                signed_pitch,
                raw::TJPF_TJPF_RGBX as libc::c_int,
            )
        };
        handle.checked(done)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from tj3Init, and nobody has it after this.
        unsafe { raw::tj3Destroy(self.0) };
    }
}

/// A side that is divided, as libjpeg-turbo rounds it.
pub(crate) fn scaled(side: u32, divisor: u32) -> u32 {
    side.div_ceil(divisor)
}

/// Columns and rows of what is compressed together, by TurboJPEG's number of the subsampling.
fn block(subsampling: libc::c_int) -> Option<(u32, u32)> {
    let of = |known: raw::TJSAMP| known as libc::c_int == subsampling;
    if of(raw::TJSAMP_TJSAMP_444) || of(raw::TJSAMP_TJSAMP_GRAY) {
        Some((8, 8))
    } else if of(raw::TJSAMP_TJSAMP_422) {
        Some((16, 8))
    } else if of(raw::TJSAMP_TJSAMP_420) {
        Some((16, 16))
    } else if of(raw::TJSAMP_TJSAMP_440) {
        Some((8, 16))
    } else {
        // Rare ones are decoded whole.
        None
    }
}

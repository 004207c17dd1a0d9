// fmt as a library, compiled once for all sources that use LibTorch: LibTorch's include folder
// has the headers of fmt without the library, and with all of fmt as inline functions each
// source costs seconds more. LibTorch 2.11 to 2.15 have fmt 12.

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE

// What fmt's headers declare without a body, or as `extern template`.
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;

namespace detail {

template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto thousands_sep_impl<wchar_t>(locale_ref) -> thousands_sep_result<wchar_t>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API auto decimal_point_impl(locale_ref) -> wchar_t;
template FMT_API auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;

}  // namespace detail
FMT_END_NAMESPACE

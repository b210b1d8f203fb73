"""Quotients of floats rounded down, and their remainders, as in CPython's ``float_divmod``."""

#: A function for both; a division by zero gives what NumPy gives.
FLOAT_DIVMOD = """\
define linkonce_odr hidden { double, double } @kvsim.float_divmod(double %x, double %y) {
  %raw = frem double %x, %y
  %is_rest = fcmp une double %raw, 0.0
  %y_below = fcmp olt double %y, 0.0
  %raw_below = fcmp olt double %raw, 0.0
  %differ = icmp ne i1 %y_below, %raw_below
  %is_down = and i1 %is_rest, %differ
  %shifted = fadd double %raw, %y
  %nonzero = select i1 %differ, double %shifted, double %raw
  %zero = select i1 %y_below, double -0.0, double 0.0
  %rest = select i1 %is_rest, double %nonzero, double %zero
  %whole = fsub double %x, %raw
  %exact = fdiv double %whole, %y
  %less = fsub double %exact, 1.0
  %div = select i1 %is_down, double %less, double %exact
  %floor = call double @llvm.floor.f64(double %div)
  %above = fsub double %div, %floor
  %is_above = fcmp ogt double %above, 0.5
  %next = fadd double %floor, 1.0
  %snapped = select i1 %is_above, double %next, double %floor
  %square = fmul double %div, %div
  %signed = fmul double %square, %x
  %small = fdiv double %signed, %y
  %is_some = fcmp one double %div, 0.0
  %quotient = select i1 %is_some, double %snapped, double %small
  %is_zero = fcmp oeq double %y, 0.0
  %infinite = fdiv double %x, %y
  %found = select i1 %is_zero, double %infinite, double %quotient
  %first = insertvalue { double, double } undef, double %found, 0
  %both = insertvalue { double, double } %first, double %rest, 1
  ret { double, double } %both
}"""

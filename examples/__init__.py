"""Small applications, one file each. Each says at its top how to run it by hand."""

"""Great Expectations' Data Docs of a run, which load nothing from elsewhere and run no script.

Great Expectations' renderers make the content. Its page itself loads styles and scripts from 16 public addresses; the
templates here replace that page, and the parts that need a script. Bootstrap's style sheet is vendored.
"""
